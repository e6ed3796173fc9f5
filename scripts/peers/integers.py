"""Inference in int8 against ONNX Runtime (static QDQ, the faster of S8S8 and U8S8) and OpenVINO (NNCF), each relative to its own f32."""
import statistics

from measure import PEERS, Series, galley_benchmark, json_of, processor_has, record, say
from models import Models, bytes_of, python, work_folder


def galley_kinds():
    """Without VNNI, Galley has two modes: exact sums, or one bit less, which is similar to two of the peers' modes there."""
    return {"Galley int8": []} if processor_has("avx512_vnni") else {"Galley int8": [], "Galley reduced": ["quantize.saturation=reduce"]}


def compare(args):
    rows, versions = [], set()
    with work_folder(args) as folder:
        for name in args.only:
            models = Models(folder, name)
            galley = {"Galley f32": models.weights, **{kind: models.galley_int8(args, *words) for kind, words in galley_kinds().items()}}
            files = {
                "ONNX Runtime f32": models.onnx, "ONNX Runtime s8s8": models.onnx_int8("s8s8"),
                "ONNX Runtime u8s8": models.onnx_int8("u8s8"), "OpenVINO f32": models.onnx, "OpenVINO int8": models.openvino_int8
            }

            def run(side, batch):
                if side in galley:
                    words = galley_kinds().get(side, [])
                    return galley_benchmark(args, f"benchmark/{name}_synthetic", f"weights={galley[side]}", *words, "what=forward",
                                            f"batch={batch}", f"benchmark.stop.max_time={args.seconds}s")["runs_ms"]
                script = "onnx_infer.py" if side.startswith("ONNX") else "openvino_infer.py"
                result = json_of([python(), PEERS / script, files[side], batch, args.threads, args.seconds])
                versions.add(result["version"])
                return result["times_ms"]

            for batch in args.batch:
                times = {side: Series() for side in [*galley, *files]}
                for _ in range(args.rounds):
                    for side, series in times.items():
                        series.add(run(side, batch))
                        say(f"int8 {name} batch {batch} {side}: {statistics.median(series.rounds[-1]):.2f} ms")
                rows += rows_of(f"{name}, batch {batch}", times, {**galley, **files})
    record(args, "int8", rows, versions)


def rows_of(title, times, files):
    onnx = min(("ONNX Runtime s8s8", "ONNX Runtime u8s8"), key=lambda side: times[side].median)

    def compared(name, int8, **more):
        f32 = f"{name} f32"
        return {
            f32: times[f32].summary(),
            f"{name} int8": times[int8].summary(**more, file_share=round(bytes_of(files[int8]) / bytes_of(files[f32]), 4))
        }

    return [(title if side == "Galley int8" else f"{title}, saturation: reduce",
             {**compared("Galley", side), **compared("ONNX Runtime", onnx, mode=onnx.split()[-1]), **compared("OpenVINO", "OpenVINO int8")})
            for side in galley_kinds()]
