"""The trace's bytes against a counter that is not ours: the kernel's, of a loopback device that nobody else uses."""

import json
import shutil
import subprocess
import sys

import pytest

UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]

SCRIPT = """
import fcntl, json, os, socket, struct, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from course_lib.distributed import ring_all_reduce, trace_messages, whole_tensor_all_reduce

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # ip link set lo up
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))
os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def counted():
    lines = open("/proc/net/dev").read().splitlines()
    return int(next(line for line in lines if line.split()[0] == "lo:").split()[9])  # bytes transmitted


RANKS, LENGTH = 3, 1_000_003
rank = 0
for number in range(1, RANKS):
    if os.fork() == 0:
        rank = number
        break
torch.set_num_threads(1)
found = {}
dist.init_process_group(
    "gloo", "tcp://127.0.0.1:29400", rank=rank, world_size=RANKS, timeout=timedelta(seconds=30)
)
for way in (ring_all_reduce, whole_tensor_all_reduce, dist.all_reduce):
    tensor = torch.ones(LENGTH)
    dist.barrier()
    before = counted()
    dist.barrier()  # nobody begins before all have looked
    with trace_messages() as trace:
        way(tensor)
    dist.barrier()
    sent = torch.tensor(trace.bytes_sent)
    dist.all_reduce(sent)
    found[way.__name__] = [int(sent), counted() - before]
    dist.barrier()
if rank:
    os._exit(0)
for _ in range(1, RANKS):
    assert os.wait()[1] == 0
print(json.dumps(found))
"""


@pytest.fixture
def private_network():
    if sys.platform != "linux" or not shutil.which("unshare"):
        pytest.skip("no unshare: network namespaces are Linux's")
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let us make a network namespace")


def test_the_trace_counts_what_the_kernel_counts(private_network, repository):
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-c", SCRIPT],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    size = 4 * 1_000_003
    for name, bytes_of_all in (("ring_all_reduce", 4 * size), ("whole_tensor_all_reduce", 6 * size)):
        traced, counted = found[name]
        assert traced == bytes_of_all
        assert traced < counted < 1.02 * traced + 100_000, name  # headers, acknowledgements, the store's lines
    # The backend's own moves as many bytes as our ring; the trace sees one record of it.
    assert found["all_reduce"][0] == 0 and 4 * size < found["all_reduce"][1] < 1.05 * 4 * size + 100_000
