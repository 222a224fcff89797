"""Bytecode in the archives of Python modules that come with Spark.

`python -m tests.support.bytecode` rewrites the archives of the Spark beside the Python that runs it: bytecode takes the place of
source, and Spark's own tests are left out. Processes that Spark starts import its modules from there. Without bytecode, each of
them compiles them anew, which takes 0.8 s of CPU; and each reads the archive's directory, of which the tests are two thirds.
"""

import py_compile
import tempfile
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pyspark


def compile_archive(archive: Path) -> None:
    """Rewrite an archive, unless that is done. The file is replaced, not changed: the installer's cache links to it."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as name, ZipFile(archive) as given:
        if any(each.endswith(".pyc") for each in given.namelist()):
            return
        source, compiled, new = (Path(name) / file for file in ("module.py", "module.pyc", "new.zip"))
        with ZipFile(new, "w", ZIP_DEFLATED) as rewritten:
            for file in given.namelist():
                if "/tests/" in file:
                    continue
                if not file.endswith(".py"):
                    rewritten.writestr(file, given.read(file))
                    continue
                source.write_bytes(given.read(file))
                py_compile.compile(str(source), cfile=str(compiled), dfile=file, doraise=True)
                rewritten.writestr(f"{file}c", compiled.read_bytes())
        new.replace(archive)


if __name__ == "__main__":
    for each in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"):
        compile_archive(each)
