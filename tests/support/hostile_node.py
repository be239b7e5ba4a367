"""A node with a registered key that speaks Flower's protocol and lies in it.

python -m tests.support.hostile_node ADDRESS CA KEY CLIENT BEHAVIOUR

It says its client number as it should, and answers every training message by its behaviour:

silent    the envelope of an honest reply and none of its objects
drip      the envelope, then one object every thirty seconds
forge     nothing, but ever new messages to the server that nobody asked for, of 2 MB each
otherwise a lie of tests.support.lying_replies
"""

import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, pull_and_inflate_object_from_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection

from tests.support.lying_replies import LIES, honest, stored


def main(address: str, authority: str, key_file: str, client: int, behaviour: str) -> None:
    key = load_ssh_private_key(Path(key_file).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    with fleet_http_connection.http_request_response(address, False, authority, (key, key.public_key())) as (
        _,
        receive,
        send,
        _,
        _,
        pull_object,
        push_object,
        confirm,
    ):
        while True:
            received = receive()
            if received is None:
                time.sleep(0.2)
                continue
            envelope, tree = received
            run = envelope.metadata.run_id
            question = pull_and_inflate_object_from_tree(
                tree, partial(pull_object, run), partial(confirm, run), return_type=Message
            )
            question.metadata.__dict__["_message_id"] = envelope.metadata.message_id
            train = question.metadata.message_type == MessageType.TRAIN
            if train and behaviour == "forge":
                forge(send, run)
                continue
            reply = LIES[behaviour](question, client) if train and behaviour in LIES else honest(question, client)
            objects, contents = stored(reply)
            wanted, session = send(reply, objects, 0.0)
            print(question.metadata.message_type, behaviour, len(contents), "objects", flush=True)
            for name, content in contents.items() if not train or behaviour != "silent" else ():
                if name in wanted:
                    with suppress(ObjectPushError):  # the server has given the reply up
                        push_object(run, session, name, content)
                    time.sleep(30.0 if train and behaviour == "drip" else 0.0)


def forge(send: object, run: int) -> None:
    """Messages that say that the server sent them to itself, their content in the envelope."""
    assert callable(send)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, SUPERLINK_NODE_ID, 1
    vars(fleet_http_connection)["remove_content_from_message"] = lambda message: message
    for number in range(10):
        content = RecordDict({"x": ConfigRecord({"x": bytes([number]) * 2_000_000})})
        forged = Message(content, SUPERLINK_NODE_ID, MessageType.TRAIN)
        forged.metadata.__dict__["_message_id"] = forged.object_id
        send(forged, ObjectTree(object_id=forged.object_id), 0.0)
        print("forged", number, flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    address, authority, key, client, behaviour = sys.argv[1:]
    main(address, authority, key, int(client), behaviour)
