"""The process of a replica: vLLM's server. Its engine is a process that begins with this module, too."""

from shared.processes.loading import quick_imports

with quick_imports():
    import vllm.v1.engine.core  # noqa: F401 - what the engine needs, before anything imports it slowly
    from vllm.entrypoints.launchers.api_server.entry import main

if __name__ == "__main__":
    main()  # type: ignore[no-untyped-call]
