"""The app that a node was given: it answers runs of the same files, whoever bundled them, and no other."""

import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from fedceo.deploy.messages import Ticket, ask
from fedceo.deploy.new import write_app
from fedceo.deploy.supernode import LARGEST_MANIFEST, GivenApp, bundled_files, load_given_app
from fedceo.errors import UsageError
from tests.support.flower_grid import experiment

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's, where it bundles

CONTEXT = Context(1, 7, {"partition-id": 0}, RecordDict(), {})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An app; its package is forgotten afterwards."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 7, 1
    write_app(tmp_path / "app", experiment(data={"clients": 3}))
    path = list(sys.path)
    yield tmp_path / "app"
    sys.path[:] = path
    for name in [name for name in sys.modules if name.partition(".")[0] == "federation"]:
        del sys.modules[name]


def asked(given: GivenApp, bundle: bytes) -> Message:
    """The reply to a question for the client's number, of a run whose app is in the bundle."""
    return given.reply(ask("query", 7, Ticket.issue(0, 0), 60), CONTEXT, bundle)


def rebundled(bundle: bytes, compression: int, **changed: bytes) -> bytes:
    """The same bundle by another zip program, with files changed."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle)) as old, zipfile.ZipFile(made, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, changed.get(name, old.read(name)))
    return made.getvalue()


def test_a_run_of_the_same_files_is_answered_whatever_compressed_them(folder: Path) -> None:
    given, bundle = load_given_app(folder), build_fab_from_disk(folder)
    again = rebundled(bundle, zipfile.ZIP_STORED)
    assert again != bundle
    for each in (bundle, again):
        assert not asked(given, each).has_error()


def test_a_run_of_another_app_is_refused_and_its_code_stays_where_it_is(folder: Path, tmp_path: Path) -> None:
    given = load_given_app(folder)
    client = folder / "federation" / "client_app.py"
    client.write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n{client.read_text()}")
    reply = asked(given, build_fab_from_disk(folder))
    assert reply.has_error() and reply.error.code == ErrorCode.INVALID_FAB
    assert not (tmp_path / "mark").exists()


def test_a_bundle_that_lies_about_its_files_is_answered_by_the_given_app(folder: Path, tmp_path: Path) -> None:
    given, bundle = load_given_app(folder), build_fab_from_disk(folder)
    theirs = f"open({str(tmp_path / 'mark')!r}, 'w')".encode()
    liar = rebundled(bundle, zipfile.ZIP_DEFLATED, **{"federation/client_app.py": theirs})
    assert not asked(given, liar).has_error()
    assert not (tmp_path / "mark").exists()


def test_a_bundle_that_cannot_be_read_is_another_app(folder: Path) -> None:
    given, bundle = load_given_app(folder), build_fab_from_disk(folder)
    bomb = rebundled(bundle, zipfile.ZIP_DEFLATED, **{".info/CONTENT": bytes(LARGEST_MANIFEST + 1)})
    broken = rebundled(bundle, zipfile.ZIP_DEFLATED, **{".info/CONTENT": b"\xff\xfe"})
    for each in (b"", b"no zip", bundle[:-40], bomb, broken):
        assert bundled_files(each) == frozenset()
        assert asked(given, each).error.code == ErrorCode.INVALID_FAB


def test_what_failed_stays_in_the_nodes_log(folder: Path) -> None:
    client = folder / "federation" / "client_app.py"
    client.write_text(
        "from flwr.clientapp import ClientApp\napp = ClientApp()\n"
        "@app.query()\ndef query(message, context):\n    raise ValueError('record 17')\n"
    )
    reply = asked(load_given_app(folder), build_fab_from_disk(folder))
    assert reply.error.reason == "the app on this node failed; its own log says how"


def test_a_folder_that_is_no_app_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(UsageError) as refused:
            load_given_app(folder)
        assert str(refused.value).startswith(f"{folder}: not an app") and "\n" not in str(refused.value)
