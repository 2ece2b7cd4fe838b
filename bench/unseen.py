#!/usr/bin/env python3
"""Text that a language model of 2024 has not been trained on: the Go files that Go 1.26 has and Go 1.21 (August 2023,
before the crawls of The Stack v2) has not.

    python3 bench/unseen.py FOLDER

writes FOLDER/unseen with these files and FOLDER/seen with the rest of Go 1.26's source, both without testdata. All files
of a package are one text, so that texts are long and refer to what is far behind. Vendored and generated files, those
above 100 KB, and files of whose longer lines Go 1.21 has a tenth somewhere are in neither.
"""
import os, re, shutil, subprocess, sys


def source(version):
    env = dict(os.environ, GOTOOLCHAIN=version)
    root = subprocess.run(["go", "env", "GOROOT"], env=env, check=True, capture_output=True, text=True).stdout.strip()
    root = os.path.join(root, "src")
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in ("testdata", "vendor"))
        for name in sorted(names):
            if name.endswith(".go"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    yield os.path.relpath(path, root), f.read()


def long_lines(text):
    return [line.strip() for line in text.splitlines() if len(line.strip()) > 20 and not line.startswith("//")]


def main(out):
    old = dict(source("go1.21.0"))
    known = {line for text in old.values() for line in long_lines(text)}
    for path, text in source("go1.26.0"):
        generated = re.search(r"(?m)^// (Code generated|Generated) ", text) or len(text) > 100_000
        lines = long_lines(text)
        fresh = path not in old and len(lines) > 10 and sum(line in known for line in lines) < len(lines) / 10
        if generated or path not in old and not fresh:
            continue
        folder, name = os.path.split(path)
        to = os.path.join(out, "unseen" if fresh else "seen", folder.replace("/", "_") + ".txt")
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with open(to, "a", encoding="utf-8") as f:
            f.write(f"// {name}\n\n{text}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2 or os.path.exists(sys.argv[1]):
        sys.exit(__doc__)
    main(sys.argv[1])
