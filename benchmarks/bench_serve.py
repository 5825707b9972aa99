"""The service under load, in one run: what it answers, how fast, and what survives.

    python benchmarks/bench_serve.py [--parts PART,...] [--columns N] [--teachers N]
                                     [--seconds S] [--kills N] [--requests N]

Parts:
    panel     queries a second of a panel (dissent) in batches of 100, with 1 and 4
              clients; milliseconds of a single query
    model     milliseconds and requests a second of a published model, against the same
              model behind plain FastAPI and uvicorn
    time      milliseconds of queries that all teachers agree on, and of others
    slow      milliseconds of a model's answers while 200 clients hold half a request
    kills     kill -9 of the server under load, at random moments
    generated requests that a generator spoils, with the status codes that came back

Records are made up. The ledger is SQLite on the disk of --folder, as durable as ever.
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import mapl
from mapl import Ledger, Panel, PrivateClassifier

BATCH = 100
PLAIN = """
import sys
import pandas as pd, uvicorn, mapl
from fastapi import FastAPI

app, model = FastAPI(), mapl.load(sys.argv[1])

@app.post("/predict")
def predict(records: dict[str, list]):
    frame = pd.DataFrame(records)
    return {"label": model.predict(frame).tolist(),
            "probability": model.predict_proba(frame).tolist()}

uvicorn.run(app, port=int(sys.argv[2]), access_log=False, log_level="error")
"""


class Records:
    """Made-up records: numbers, and two columns of texts."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rng = np.random.default_rng(0)

    def frame(self, n: int) -> pd.DataFrame:
        """Return n records."""
        found: dict[str, Any] = {
            f"x{i}": self.rng.normal(size=n) for i in range(self.columns - 2)
        }
        found |= {f"c{i}": self.rng.choice(list("abcd"), n) for i in range(2)}
        return pd.DataFrame(found)

    def labels(self, frame: pd.DataFrame) -> Any:
        """Return their labels."""
        clear = 2 * frame["x0"] + (frame["c0"] == "a") + frame["x1"] > 0
        return np.where(clear, "yes", "no")


def make(folder: Path, records: Records, teachers: int) -> None:
    """Make a ledger, two panels and a model, by the commands that users run."""
    private, public = records.frame(20_000), records.frame(1000)
    private.assign(y=records.labels(private)).to_csv(
        folder / "private.csv", index=False
    )
    public.to_csv(folder / "public.csv", index=False)
    url = f"sqlite:///{folder}/budget.db"
    Ledger(url, create=True).create("d", epsilon=10_000, delta=1e-2)
    files = (folder / "private.csv", "--public", folder / "public.csv")
    kinds = ("--target", "y", "--classes", "no,yes", "--teachers", teachers)
    where = ("--ledger", url, "--dataset", "d", "--panel", folder / "panel")
    run("panel", "train", *files, *kinds, *where)
    Panel.load(folder / "panel").open(
        mechanism="dissent", epsilon=2000, queries=1_000_000
    )
    model = PrivateClassifier(epsilon=2, classes=["no", "yes"])
    model.fit(
        private, records.labels(private), X_public=public, allow_overlap=True
    ).save(folder / "model")


def run(*args: Any) -> None:
    mapl_ = Path(sys.executable).parent / "mapl"
    subprocess.run([mapl_, *map(str, args)], check=True, capture_output=True)


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[Any, int]]:
    """Run mapl serve; yield its process and port."""
    command = [str(Path(sys.executable).parent / "mapl"), "serve", "--port", "0"]
    command += ["--panel", str(folder / "panel"), "--model", str(folder / "model")]
    command += ["--rate", "1e9", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        port = int(json.loads(process.stderr.readline())["url"].rpartition(":")[2])
        reading = threading.Thread(target=process.stderr.read)
        reading.start()
        wait_for(port)
        yield process, port
        process.terminate()
        process.wait(30)
        reading.join()


def wait_for(port: int, path: str = "/v2/health/live") -> None:
    for _ in range(300):
        try:
            Client(port).get(path)
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("The server does not answer.")


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def get(self, path: str) -> bytes:
        """Return what is at a path."""
        self.connection.request("GET", path)
        return self.connection.getresponse().read()

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """Return status and answer."""
        headers = {"Content-Type": "application/json"}
        self.connection.request("POST", path, body, headers)
        found = self.connection.getresponse()
        return found.status, json.loads(found.read())


def request_of(frame: pd.DataFrame, name: str | None = None) -> bytes:
    inputs = [
        {
            "name": column,
            "shape": [len(frame)],
            "datatype": "FP64" if frame[column].dtype.kind == "f" else "BYTES",
            "data": frame[column].tolist(),
        }
        for column in frame
    ]
    return json.dumps({"inputs": inputs} | ({"id": name} if name else {})).encode()


def timed(call: Callable[[], Any], n: int) -> Any:
    """Return milliseconds of n calls, after three that do not count."""
    found = []
    for _ in range(n + 3):
        start = time.perf_counter()
        call()
        found.append(1000 * (time.perf_counter() - start))
    return np.array(found[3:])


def shown(found: Any) -> str:
    p50, p95 = np.percentile(found, [50, 95])
    return f"median {p50:.1f} ms, 95th percentile {p95:.1f} ms"


def rate(port: int, path: str, body: bytes, clients: int, seconds: float) -> float:
    """Return requests a second of some clients."""
    end, counts = time.perf_counter() + seconds, [0] * clients

    def client(i: int) -> None:
        own = Client(port)
        while time.perf_counter() < end:
            assert own.post(path, body)[0] == 200
            counts[i] += 1

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return sum(counts) / seconds


def panel_part(folder: Path, records: Records, args: Any) -> None:
    path, many = "/v2/models/panel/infer", request_of(records.frame(BATCH))
    with served(folder) as (_, port):
        rate(port, path, many, 1, 1)
        for clients in (1, 4):
            found = BATCH * rate(port, path, many, clients, args.seconds)
            print(
                f"panel, batches of {BATCH}, {clients} clients: {found:,.0f} queries/s"
            )
        one, client = request_of(records.frame(1)), Client(port)
        print(f"panel, one query: {shown(timed(lambda: client.post(path, one), 300))}")
        found = rate(port, path, one, 16, args.seconds)
        print(f"panel, one query a request, 16 clients: {found:,.0f} queries/s")


def model_part(folder: Path, records: Records, args: Any) -> None:
    path = "/v2/models/model/infer"
    with socket.create_server(("127.0.0.1", 0)) as free:
        other = free.getsockname()[1]
    script = folder / "plain.py"
    script.write_text(PLAIN)
    plain = subprocess.Popen([sys.executable, script, folder / "model", str(other)])
    try:
        with served(folder) as (_, port):
            wait_for(other, "/openapi.json")
            for n in (1, BATCH):
                frame = records.frame(n)
                theirs = json.dumps(frame.to_dict("list")).encode()
                ours = request_of(frame)
                mine = timed(partial(Client(port).post, path, ours), 200)
                yours = timed(partial(Client(other).post, "/predict", theirs), 200)
                ratio = np.median(mine) / np.median(yours)
                print(f"model, {n} records: {shown(mine)}")
                print(f"  plain FastAPI: {shown(yours)}; ratio {ratio:.2f}")
                fast = rate(port, path, ours, 4, args.seconds)
                base = rate(other, "/predict", theirs, 4, args.seconds)
                print(f"  4 clients: {fast:,.0f} and {base:,.0f} requests/s, ratio "
                      f"{base / fast:.2f}")  # fmt: skip
    finally:
        plain.terminate()
        plain.wait()


def time_part(folder: Path, records: Records, args: Any) -> None:
    """Compare queries that teachers agree on with others, in turn."""
    frame = records.frame(20_000)
    margin = 2 * frame["x0"] + (frame["c0"] == "a") + frame["x1"]
    kinds = {
        "agreed": frame[margin > 4],
        "disputed": frame[margin.abs() < 0.02],
    }
    path = "/v2/models/panel/infer"
    with served(folder) as (_, port):
        client = Client(port)
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for i in range(600):
            for name, rows in kinds.items():
                one = request_of(rows.iloc[[i % len(rows)]])
                start = time.perf_counter()
                client.post(path, one)
                found[name].append(1000 * (time.perf_counter() - start))
    a, b = (np.array(found[name][20:]) for name in kinds)
    print(f"agreed {shown(a)}; disputed {shown(b)}")
    better = (a[:, None] < b).mean() + 0.5 * (a[:, None] == b).mean()
    print(f"a disputed query takes longer in {100 * better:.1f} % of pairs (50 % tells "
          "nothing)")  # fmt: skip


def slow_part(folder: Path, records: Records, args: Any) -> None:
    path, one = "/v2/models/model/infer", request_of(records.frame(1))
    with served(folder) as (_, port):
        client = Client(port)
        alone = timed(lambda: client.post(path, one), 200)
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        for i, other in enumerate(held):
            other.sendall(
                b"POST " + path.encode() + b" HTTP/1.1\r\nhost: localhost\r\n"
            )
            if i % 2:
                other.sendall(b"content-length: 100\r\n\r\n{")
        client = Client(port)
        beside = timed(lambda: client.post(path, one), 200)
        print(f"alone {shown(alone)}; beside 200 slow clients {shown(beside)}")
        for other in held:
            other.close()


def kills_part(folder: Path, records: Records, args: Any) -> None:
    """Kill the server while clients ask under names that they use again."""
    known: dict[str, Any] = {}
    frames = [records.frame(3) for _ in range(4)]
    wrong: list[str] = []
    spent = Ledger(f"sqlite:///{folder}/budget.db").balance("d").epsilon_spent
    replies = 0

    def client(port: int, number: int, round_: int) -> int:
        own, n = Client(port), 0
        for i in range(10_000):
            name = f"k{number}-{i % 11}-{round_ // 3}"
            body = request_of(frames[number], name)
            try:
                code, reply = own.post("/v2/models/panel/infer", body)
            except (OSError, http.client.HTTPException):
                return n
            if code != 200 or known.setdefault(name, reply) != reply:
                wrong.append(name)
            n += 1
        return n

    for round_ in range(args.kills):
        with served(folder) as (process, port), ThreadPoolExecutor(4) as pool:
            running = [pool.submit(client, port, i, round_) for i in range(4)]
            time.sleep(random.uniform(0.01, 0.8))
            process.send_signal(signal.SIGKILL)
            process.wait()
            replies += sum(one.result() for one in running)
    panel = Panel.load(folder / "panel")
    for name, reply in known.items():
        found = panel.ask(frames[int(name[1])], id=name)
        labels = ["" if one is None else one for one in found.labels]
        wrong += [] if labels == reply["outputs"][0]["data"] else [name]
    ledger = Ledger(f"sqlite:///{folder}/budget.db")
    after = ledger.balance("d").epsilon_spent
    print(f"{args.kills} kills: {replies} replies under {len(known)} names, "
          f"{len(wrong)} contradicted, charged {spent:g} before and {after:g} after, "
          f"{ledger.verify()} rows verify")  # fmt: skip


def generated_part(folder: Path, records: Records, args: Any) -> None:
    """Send requests with parts that a generator wrote."""
    rng, codes = random.Random(0), Counter[int]()
    odd: list[Any] = [
        None,
        True,
        -1,
        0,
        1.5,
        1e308,
        2**70,
        "",
        "x",
        "\x00",
        "é" * 50,
        [],
        {},
        [[]],
    ]
    odd += [[None], {"data": []}, "NaN", [1, "a"], ["a", ["b"]], [-1], [2**40, 2**40]]
    names = ["panel", "model", "panel", "none", "%2e%2e", "a b"]
    with served(folder) as (_, port):
        client, before = Client(port), time.perf_counter()
        for i in range(args.requests):
            frame = records.frame(rng.randrange(1, 4))
            request: Any = json.loads(request_of(frame, f"g{rng.randrange(50)}"))
            for _ in range(rng.randrange(3)):
                place: Any = rng.choice([request, *request["inputs"]])
                key = rng.choice([*place, "more"])
                place[key] = rng.choice(odd)
                if not isinstance(request.get("inputs"), list):
                    break
                request["inputs"] = [
                    one if isinstance(one, dict) else {} for one in request["inputs"]
                ]
            body = json.dumps(request).encode()
            if rng.random() < 0.1:
                cut = rng.randrange(len(body))
                body = body[:cut] + rng.choice([b"", b"\xff", b"]", b"NaN", b"\\ud800"])
            name = rng.choice(names).replace(" ", "%20")
            code, reply = client.post(f"/v2/models/{name}/infer", body)
            codes[code] += 1
            text = json.dumps(reply)
            if (
                code >= 500
                or "Traceback" in text
                or (code != 200) != ("error" in reply)
            ):
                print(f"request {i}: {code} {text[:200]}\n  {body[:300]!r}")
        seconds = time.perf_counter() - before
    listed = ", ".join(f"{code}: {n}" for code, n in sorted(codes.items()))
    print(f"{args.requests} generated requests in {seconds:.0f} s: {listed}")


PARTS = {
    "panel": panel_part,
    "model": model_part,
    "time": time_part,
    "slow": slow_part,
    "kills": kills_part,
    "generated": generated_part,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--folder", default=None, help="where the ledger lies")
    args = parser.parse_args()
    print(f"mapl {mapl.__version__}, {vars(args)}")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        os.environ["MAPL_STATE"] = str(folder / "state")
        records = Records(args.columns)
        make(folder, records, args.teachers)
        for part in args.parts.split(","):
            print(f"\n{part}")
            PARTS[part](folder, records, args)


if __name__ == "__main__":
    main()
