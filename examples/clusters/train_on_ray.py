"""A shipped model trained in processes that Ray places: when one is lost, all begin again.

    python examples/clusters/train_on_ray.py --cpus 0.5                          # on this machine, if it has two CPUs
    ray job submit --working-dir examples/clusters -- python train_on_ray.py     # on a cluster that runs
    kubectl apply -f examples/clusters/ray.yaml                                  # on a cluster that KubeRay makes

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
    parser.add_argument("--cpus", type=float, default=1, help="of each process (default: 1); there must be as many")
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
        resources={"CPU": given.cpus},
    )
    print(f"{len(done.losses)} steps, loss {done.losses[-1]:.4f}")
    print(f"test accuracy {done.summary['test_accuracy']:.3f}")


if __name__ == "__main__":
    main()
