"""mutant_builds.py: compiles and links a mutant, and runs tests with it.

Of each build directory there is one Build. A Worker has programs of its own: hard links to the build's, as long as they
are not linked anew. So the source and the builds are never changed, and may be used by several workers.
"""
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections import defaultdict
from pathlib import Path

import mutations

# These cannot see common/ as it runs on a CPU, or see only the files of the repository.
LEFT_OUT = re.compile(r"notes|includes|course|sanitizer_misspelt|alpha_beta|collectives|.*emulat.*|.*cuda.*")


class Stopped(Exception):
    """The user has pressed Ctrl-C."""


class Running:
    """The tests that are under way, so that Ctrl-C ends them."""

    def __init__(self):
        self.lock, self.processes, self.stopped = threading.Lock(), set(), False

    def call(self, command, cwd, environment, output, limit):
        """The exit status, or None where the command took longer than `limit` seconds."""
        with self.lock:
            if self.stopped:
                raise Stopped
            with open(output, "wb") as log:
                process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                           stderr=log, start_new_session=True, preexec_fn=limit_resources)
            self.processes.add(process)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            kill_group(process)
            with self.lock:
                self.processes.discard(process)
            if self.stopped:
                raise Stopped

    def stop(self):
        with self.lock:
            self.stopped = True
            for process in self.processes:
                kill_group(process)


def limit_resources():
    """A mutant may write or allocate without end. (Sanitizers reserve terabytes of addresses: no limit for these.)"""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def kill_programs_below(directory):
    """What a mutant has left running, in whatever process group: its program is a file below `directory`."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "exe").startswith(f"{directory}/"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass


running = Running()


class Build:
    """One of the build directories: how it compiles and links, and its tests."""

    def __init__(self, work, name):
        self.work, self.name, self.directory = work, name, work / name
        self.compile = defaultdict(list)  # source -> [(object, command)]
        for entry in json.loads((self.directory / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])
            if "cuda_emulator" not in entry["command"]:
                self.compile[entry["file"]].append((words[words.index("-o") + 1], words))
        self.links, self.libraries = {}, {}
        commands = subprocess.run(["ninja", "-t", "commands", "everything"], cwd=self.directory, check=True, text=True,
                                  stdout=subprocess.PIPE).stdout
        for line in commands.splitlines():
            words = shlex.split(line) if "cuda_emulator" not in line else []
            if "-c" not in words and "-o" in words:
                self.links[words[words.index("-o") + 1]] = words
            elif "qc" in words:
                library = words[words.index("qc") + 1]
                self.libraries.update({word: library for word in words if word.endswith(".o")})
        self.tests = self.read_tests()

    def read_tests(self):
        text = subprocess.run(["ctest", "--show-only=json-v1", "-LE", "slow"] +
                              (["-L", "thread"] if self.name == "thread" else []), cwd=self.directory, check=True,
                              text=True, stdout=subprocess.PIPE).stdout
        tests = {}
        for test in json.loads(text)["tests"]:
            if not LEFT_OUT.fullmatch(test["name"]):
                properties = {one["name"]: one["value"] for one in test["properties"]}
                tests[test["name"]] = {"command": test["command"], "cwd": properties["WORKING_DIRECTORY"],
                                       "environment": dict(e.split("=", 1) for e in properties["ENVIRONMENT"]),
                                       "one process": properties.get("PROCESSORS", 1) == 1}
        return tests

    def objects_of(self, path):
        """[(object, command)] of all that is compiled from the file, or includes it."""
        source = str(self.work / "tree" / path)
        if path.endswith(".c"):
            return self.compile[source]
        dependencies = subprocess.run(["ninja", "-t", "deps"], cwd=self.directory, check=True, text=True,
                                      stdout=subprocess.PIPE).stdout
        users = {block.split(":")[0] for block in dependencies.split("\n\n") if source in block.split()}
        return [one for file, entries in self.compile.items() if "/common/" in file or "/train/" in file
                for one in entries if one[0] in users]


class Worker:
    """A directory in which one mutant at a time is built and tried: the programs of a build, hard links to the
    originals as long as they are not linked anew."""

    def __init__(self, build, number):
        self.build = build
        self.home = build.work / f"worker{number}" / build.name
        self.programs = self.home / "build"
        self.temporary = self.home / "tmp"
        shutil.rmtree(self.home, ignore_errors=True)
        self.temporary.mkdir(parents=True)
        for program in build.links:
            self.restore(program)
        self.mutated = {}  # object -> the mutant's
        self.linked = set()

    def restore(self, program):
        path = self.programs / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.link(self.build.directory / program, path)

    def restore_programs(self):
        for program in self.linked:
            self.restore(program)
        self.linked = set()

    def clear(self):
        self.restore_programs()
        self.mutated = {}
        shutil.rmtree(self.home / "objects", ignore_errors=True)

    def compile(self, mutation):
        """'uncompilable', 'equal' where the object code is what it was, or None."""
        tree = self.build.work / "tree"
        original = tree / mutation.path
        source = self.home / "objects" / mutation.path
        source.parent.mkdir(parents=True)
        source.write_text(f'#line 1 "{original}"\n' + mutations.apply(original.read_text(), mutation))
        for number, (output, command) in enumerate(self.build.objects_of(mutation.path)):
            mutant = self.home / "objects" / str(number) / Path(output).name
            mutant.parent.mkdir()
            words = [str(source) if word == str(original) else word for word in command]
            words[words.index("-o") + 1] = str(mutant)
            words[1:1] = ["-I", str(self.home / "objects" / "common"), "-I", str(self.home / "objects"), "-iquote", str(original.parent), "-w"]
            if subprocess.run(words, cwd=self.build.directory, stderr=subprocess.DEVNULL).returncode != 0:
                return "uncompilable"
            if mutant.read_bytes() != (self.build.directory / output).read_bytes():
                self.mutated[output] = str(mutant)
        return None if self.mutated else "equal"

    def shared_library(self, name):
        """The library, with the mutant's objects in it if it has any."""
        objects = [mutant for output, mutant in self.mutated.items() if self.build.libraries.get(output) == name]
        copy = self.home / "objects" / Path(name).name
        if objects and not copy.exists():
            shutil.copy(self.build.directory / name, copy)
            subprocess.run(["ar", "r", str(copy)] + objects, check=True)
        return str(copy) if objects else name

    def link(self, program):
        if not self.mutated or program in self.linked:
            return
        self.linked.add(program)
        words = [self.mutated.get(word, word) for word in self.build.links[program]]
        words = [self.shared_library(word) if word.endswith(".a") else word for word in words]
        assert words != self.build.links[program], f"{program} does not use the changed file"
        target = self.programs / program
        target.unlink()
        words[words.index("-o") + 1] = str(target)
        subprocess.run(["sh", "-c", " ".join(word if word in (":", "&&") else shlex.quote(word) for word in words)],
                       cwd=self.build.directory, check=True)

    def run(self, name, limit, environment=()):
        """Whether the test passes, and the seconds that it took."""
        test = self.build.tests[name]
        here = lambda text: text.replace(str(self.build.directory), str(self.programs))
        begin = time.monotonic()
        status = running.call([here(word) for word in test["command"]], here(test["cwd"]),
                              {**os.environ, **test["environment"], "TMPDIR": str(self.temporary),
                               **dict(environment)}, self.home / "output", limit)
        kill_programs_below(self.programs)
        shutil.rmtree(self.temporary)
        self.temporary.mkdir()
        return status == 0, time.monotonic() - begin
