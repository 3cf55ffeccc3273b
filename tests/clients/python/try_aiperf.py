"""aiperf, the load generator: chat, completions, streams; every request must be answered."""
import csv
import pathlib
import shutil

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from commands import command
from steps import KEY, MODEL, URL, run, step

FOLDER = pathlib.Path("artifacts")

# It wants a tokenizer for its own counts and prompts, and would fetch any that has a name: a made-up one serves as well.
made = Tokenizer(models.BPE(unk_token="?"))
made.pre_tokenizer = pre_tokenizers.ByteLevel()
made.train_from_iterator(["the quick brown fox"], trainers.BpeTrainer(special_tokens=["?"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?").save_pretrained("tokenizer")

for name, endpoint, more in (("chat, streamed", "chat", ["--streaming"]), ("chat", "chat", []), ("completions, streamed", "completions", ["--streaming"])):
    @step(name)
    def load(endpoint=endpoint, more=more):
        shutil.rmtree(FOLDER, ignore_errors=True)
        said = command("aiperf", "profile", "--model", MODEL, "--url", URL, "--endpoint-type", endpoint, "--api-key", KEY, "--tokenizer", pathlib.Path("tokenizer").resolve(),
                       "--request-count", 4, "--concurrency", 2, "--isl", 40, "--osl", 12, "--artifact-dir", FOLDER, "--ui", "none", *more)
        found = [row for path in FOLDER.rglob("*.csv") for row in csv.reader(path.open()) if row and row[0].startswith("Request Count")]
        assert found and float(found[0][1]) == 4, (found, said[-1500:])


run()
