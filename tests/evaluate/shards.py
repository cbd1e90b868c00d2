"""A verl checkpoint of FSDP2 shards, as two ranks write it: `python shards.py <model folder> <actor folder>`."""

import json
import os
import shutil
import socket
import sys
from pathlib import Path


def rank_main(rank, port, model, actor):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from transformers import AutoModelForCausalLM

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    whole = AutoModelForCausalLM.from_pretrained(model).state_dict()
    shards = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole.items()}
    torch.save(shards, f"{actor}/model_world_size_2_rank_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(model, actor):
    import torch.multiprocessing

    (actor / "huggingface").mkdir(parents=True)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, actor / "huggingface")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(rank_main, (port, str(model), str(actor)), nprocs=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
