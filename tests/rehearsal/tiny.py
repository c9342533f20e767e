import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import rehearse

nb = next(Path("labs").glob(sys.argv[1] + "_*/*.ipynb")).absolute()
print(
    json.dumps(
        dict(
            notebook=str(nb),
            parameters=rehearse.parameters(nb, 1 if sys.argv[1] == "01" else int(os.environ["PRETENDED_GPUS"])),
        )
    )
)
