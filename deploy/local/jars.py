"""Jars of a lock file, such as those of Kafka: from the cache, by Maven, or by jgo as a plain fetcher."""

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.local.cache import cached
from deploy.local.errors import MissingPart
from deploy.local.settings import Settings

HERE = Path(__file__).parent
LOCK = HERE / "jars.lock"
POM = HERE / "pom.xml"


@dataclass(frozen=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def locked_jars(text: str) -> tuple[Jar, ...]:
    """Parse the lock: one `group:artifact:version sha256` a line."""
    return tuple(_jar(*line.split()) for line in text.splitlines() if line.strip())


def _jar(coordinates: str, sha256: str) -> Jar:
    group, artifact, version = coordinates.split(":")
    return Jar(group, artifact, version, sha256)


def kafka_jars() -> list[Path]:
    """The class path of the broker, fetched now if this user has never had it. Raises MissingPart."""
    text = LOCK.read_text()
    jars = locked_jars(text)
    version = next(jar.version for jar in jars if jar.artifact == "kafka_2.13")
    name = f"kafka-{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder = cached(
        name,
        is_complete=lambda entry: not wrong_jars(entry, jars),
        make=lambda draft: fetch(draft, jars, POM),
    )
    return [folder / jar.file for jar in jars]


def wrong_jars(folder: Path, jars: tuple[Jar, ...]) -> list[Jar]:
    """Return the jars that are missing in `folder` or differ from the lock."""
    return [jar for jar in jars if not _is_as_locked(folder / jar.file, jar)]


def _is_as_locked(path: Path, jar: Jar) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


def fetch(folder: Path, jars: tuple[Jar, ...], pom: Path) -> None:
    """Fetch what `pom` names, exactly as it is locked. Raises MissingPart."""
    tried = []
    if shutil.which("mvn"):
        tried.append(f"mvn: {fetch_with_maven(folder, pom)}")
    wrong = wrong_jars(folder, jars)
    if wrong:
        tried.append(f"jgo: {fetch_with_jgo(folder, wrong)}")
        wrong = wrong_jars(folder, jars)
    if wrong:
        missing = ", ".join(jar.file for jar in wrong[:3])
        raise MissingPart(
            f"{len(wrong)} of {len(jars)} jars are missing ({missing} …): check the network, or "
            f"set RETUNE_MAVEN_URL to a Maven repository that you can reach [{'; '.join(tried)}]"
        )


def fetch_with_maven(folder: Path, pom: Path) -> str:
    """Maven honours the mirrors of the user's settings. Returns its last words."""
    pom = Path(shutil.copy(pom, folder))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    pom.unlink()
    return (done.stdout + done.stderr).strip()[-200:]


def fetch_with_jgo(folder: Path, jars: list[Jar]) -> str:
    """Fetch each jar by its coordinates, resolving nothing. Returns why it failed, or nothing."""
    import jgo
    from jgo.maven import MavenContext

    repository = Settings().maven_url or jgo.MAVEN_CENTRAL_URL
    context = MavenContext(
        repo_cache=folder / ".repository", remote_repos={"central": repository}, local_repos=[]
    )
    try:
        for jar in jars:
            artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
            shutil.copy(artifact.resolve(), folder / jar.file)
    except (OSError, RuntimeError, ValueError) as error:
        return str(error)[-200:]
    finally:
        shutil.rmtree(folder / ".repository", ignore_errors=True)
    return ""
