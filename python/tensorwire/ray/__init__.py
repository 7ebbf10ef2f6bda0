"""Ray as an engine: it places the processes of a job, starts them anew where one is lost, and hands tensors from actor to actor.

`train` runs a function in workers that Ray placed, each with what torchrun would have told it, so that
``torch.distributed.init_process_group("tensorwire")`` and ``tensorwire.kv.create()`` find the others; or it trains an imported
module, or a model that is shipped, as ``tensorwire.train`` does::

    import tensorwire.ray

    results = tensorwire.ray.train(job, {"rate": 0.1}, workers=4, restarts=2)
    done = tensorwire.ray.train(graph, loader, strategy="ps", workers=2, servers=2, epochs=5)

`register` announces a transport for tensors of the CPU, which methods of actors name::

    tensorwire.ray.register()

    @ray.remote
    class Source:
        @ray.method(tensor_transport="TENSORWIRE")
        def batch(self): ...
"""

from tensorwire.ray.engine import WorkerFailed, train

__all__ = ["WorkerFailed", "register", "train"]


def register() -> None:
    """Announces the transport ``TENSORWIRE``. To be called where actors are created, before they are."""
    # it needs PyTorch, which processes of jobs may do without
    from tensorwire.ray import transport

    transport.register()
