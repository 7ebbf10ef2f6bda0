"""A shipped model trained in processes that Ray places: when one is lost, all begin again.

    python examples/clusters/ray.py                                      # on this machine
    ray job submit --working-dir examples/clusters -- python ray.py      # on a cluster that runs
    kubectl apply -f examples/clusters/ray.yaml                          # on a cluster that KubeRay makes

Needs Ray, PyTorch and the Python package tensorwire on every node. With --checkpoint FOLDER, one that all nodes reach, the
processes go on from the newest checkpoint.
"""

import argparse

import tensorwire.ray


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--strategy", default="ps")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", metavar="FOLDER")
    parser.add_argument("--restarts", type=int, default=3)
    given = parser.parse_args()
    done = tensorwire.ray.train(
        given.model,
        given.data,
        strategy=given.strategy,
        workers=given.workers,
        servers=given.servers,
        epochs=given.epochs,
        checkpoint=given.checkpoint,
        restarts=given.restarts,
        # processes of one node share it
        placement_strategy="SPREAD",
    )
    print(f"{len(done.losses)} steps, loss {done.losses[-1]:.4f}")
    print(f"test accuracy {done.summary['test_accuracy']:.3f}")


if __name__ == "__main__":
    main()
