LOSES = {}
RIGHT = {}
WRONG = {}
SAYS = {}
