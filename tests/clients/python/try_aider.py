"""aider, the programmer at the command line: it is asked for a change, and makes it in a repository."""
import pathlib
import shutil
import subprocess

from commands import command
from steps import BASE, KEY, MODEL, run, step

FOLDER = pathlib.Path("project")

for name, more in (("an edit, whole files", ["--edit-format", "whole"]), ("an edit, not streamed", ["--edit-format", "whole", "--no-stream"])):
    @step(name)
    def edit(more=more):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        file = FOLDER / "greet.py"
        file.write_text('def greet(name):\n    return "Hello, " + name\n')
        subprocess.run(["git", "-c", "init.defaultBranch=main", "init", "-q"], cwd=FOLDER, check=True)
        said = command("aider", "--model", f"openai/{MODEL}", "--openai-api-base", BASE, "--openai-api-key", KEY, "--yes-always", "--no-auto-commits",
                       "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--map-tokens", 0, "--no-pretty", "--timeout", 900,
                       "--message", "Change the function greet so that it says Goodbye in place of Hello.", *more, "greet.py", cwd=FOLDER)
        assert "Goodbye" in file.read_text(), said[-1500:]


run()
