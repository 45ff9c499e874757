from shared.device import device_name


def test_a_device_is_known_by_its_product(tmp_path):
    cpu, gpus = tmp_path / "cpuinfo", tmp_path / "gpus"
    cpu.write_text("processor\t: 0\nmodel name\t: EPYC 9R14\nmodel name\t: EPYC 9R14\n")
    (gpus / "0000:01").mkdir(parents=True)
    (gpus / "0000:01" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    assert device_name("cpu", cpu_info=cpu) == "EPYC 9R14"
    assert device_name("cuda", gpus=gpus) == "NVIDIA H200"
    assert device_name("cuda", gpus=tmp_path / "none") == ""
    assert device_name("cpu", cpu_info=tmp_path / "none") != ""
