"""`deploy/slurm/scaling.sbatch` with a stand-in for srun: which ranks it measures, with which batches."""

import pytest
from test_deploy_scripts import DEPLOY, run_script, stand_in


def measured(tmp_path, *options, **variables):
    """The commands that the job gave srun."""
    commands = tmp_path / "commands"
    commands.mkdir()
    stand_in(commands, "srun", 'echo "threads $OMP_NUM_THREADS: $@"')
    stand_in(commands, "scontrol", "printf 'node7\\nnode8\\n'")
    (tmp_path / "labs").symlink_to(DEPLOY.parent / "labs")
    given = {
        "PYTHON": "python", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_CPUS_PER_TASK": "8",
        "SLURM_GPUS_ON_NODE": "4", **variables,
    }  # fmt: skip
    done = run_script(tmp_path, "slurm/scaling.sbatch", options, **given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"results: {variables.get('RESULTS', 'runs/scaling-12345')}"
    return [line for line in done.stdout.splitlines() if line.startswith("threads")]


PROGRAM = "labs/11_scaling_study/resnet_cifar10.py"


def test_one_node_measures_1_2_and_4_gpus_with_as_many_images_each(tmp_path):
    assert measured(tmp_path, "--epochs", "5", "--batch_size", "256") == [
        f"threads {8 // n}: --kill-on-bad-exit=1 --nodes=1 --ntasks=1 --cpus-per-task=8 python -m torch.distributed.run --standalone "
        f"--nproc-per-node={n} {PROGRAM} --epochs 5 --batch_size 256 --batch_size 256 --output runs/scaling-12345/ranks-{n}.json"
        for n in (1, 2, 4)
    ]


@pytest.mark.parametrize("options, batch", [((), 2048), (("--batch-size=512",), 512)])
def test_strong_scaling_shares_the_batch_out(tmp_path, options, batch):
    commands = measured(tmp_path, *options, STRONG="1", RESULTS="there")
    sizes = [line.rpartition("--batch_size ")[2].split()[0] for line in commands]
    assert sizes == [str(batch // n) for n in (1, 2, 4)] and commands[0].endswith("--output there/ranks-1.json")


def test_further_nodes_join_with_all_their_ranks(tmp_path):
    commands = measured(tmp_path, SLURM_NNODES="4", RANKS_PER_NODE="2")
    assert [line.partition(" --cpus")[0] for line in commands] == [
        f"threads {threads}: --kill-on-bad-exit=1 --nodes={nodes} --ntasks={nodes}"
        for threads, nodes in ((8, 1), (4, 1), (4, 2), (4, 4))
    ]  # fmt: skip
    assert "--nnodes=4 --rdzv-backend=c10d --rdzv-id=12345-8 --rdzv-endpoint=node7:20690" in commands[3]
    assert "--output runs/scaling-12345/ranks-8.json" in commands[3]
