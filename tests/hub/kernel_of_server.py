"""A kernel of somebody's server, spoken to as a notebook does: through the hub's proxy."""

from __future__ import annotations

import json
import uuid

from websocket import create_connection


class NotebookKernel:
    """A Python kernel of `visitor`'s server; it stays when this object goes."""

    def __init__(self, visitor) -> None:
        self.visitor = visitor
        made = visitor.by_token("POST", f"/user/{visitor.name}/api/kernels", json={"name": "python3"})
        made.raise_for_status()
        self.id = made.json()["id"]

    def run(self, code: str, seconds: float = 120) -> str:
        """What `code` prints; its error, if it has one."""
        visitor, said = self.visitor, []
        address = f"{visitor.hub.address.replace('http', 'ws')}/user/{visitor.name}/api/kernels/{self.id}/channels"
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "username": "",
            "session": "",
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
        asked = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        channels = create_connection(address, header=[f"Authorization: token {visitor.token}"], timeout=seconds)
        try:
            channels.send(json.dumps(asked))
            while True:
                told = json.loads(channels.recv())
                if told["parent_header"].get("msg_id") != header["msg_id"]:
                    continue
                if told["msg_type"] == "stream":
                    said.append(told["content"]["text"])
                elif told["msg_type"] == "error":
                    said.append(told["content"]["evalue"])
                elif told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
                    return "".join(said)
        finally:
            channels.close()
