#!/usr/bin/env bash
# Makes the files of this folder with the programs of a build: files that this version writes, and the numbers that it computes from them.
# Later versions must read them (tests/cli/compat_test.cpp). Make them again only if a format is extended, with a build from before the
# change:
#
#   tests/golden/compat/make.sh BIN        BIN: a folder of programs, such as build/bin
#
# Needs bash, gzip and sed. Inputs: net.yaml, text.yaml, and the samples of ../qat/data.safetensors.
set -euo pipefail
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")"
quiet=(-q --format json)

rm -rf net text qat resumed ./*.safetensors ./*.calib.gz expected.json
seq 100 999 >text.txt

# The report of a command without its provenance, which describes the machine.
report() { "$@" "${quiet[@]}" | sed 's/,"provenance":{.*}}$/}/; s/,"wall_s":[^,}]*//'; }
# The losses of the steps of a run as a list.
losses() { echo "[$(sed -n 's/^{"kind":"train",.*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl" | paste -sd,)]"; }

"$bin/galley-train" net.yaml -o net "${quiet[@]}" >/dev/null
"$bin/galley-train" text.yaml -o text "${quiet[@]}" >/dev/null
"$bin/galley-train" net quantize.method=qat quantize.qat.start="1 steps" train.duration="8 steps" checkpoint=null train.ema=null \
  -o qat "${quiet[@]}" >/dev/null
"$bin/galley-calibrate" net -o net.calib "${quiet[@]}" >/dev/null
"$bin/galley-quantize" net --calibration net.calib -o net.int8.safetensors "${quiet[@]}" >/dev/null
"$bin/galley-quantize" qat -o qat.int8.safetensors "${quiet[@]}" >/dev/null
"$bin/galley-quantize" text quantize.method=dynamic -o text.int8.safetensors "${quiet[@]}" >/dev/null
for weights in net/weights net.int8; do
  "$bin/galley-predict" net "weights=$weights.safetensors" --tensors ../qat/data.safetensors -o "${weights%/weights}.output.safetensors" -q
done
for run in net text; do
  cp -r "$run" resumed
  "$bin/galley-train" resumed train.duration="20 steps" "${quiet[@]}" >/dev/null
  printf -v "resumed_$run" '{"losses":%s,"evaluation":%s}' "$(losses resumed)" "$(report "$bin/galley-evaluate" resumed)"
  rm -r resumed
done
cat >expected.json <<END
{
"isa": "$("$bin/galley-evaluate" net "${quiet[@]}" | sed 's/.*"isa":"\([^"]*\)".*/\1/')",
"net": $(report "$bin/galley-evaluate" net),
"net.ema": $(report "$bin/galley-evaluate" net weights=net/weights_ema.safetensors),
"net.int8": $(report "$bin/galley-evaluate" net weights=net.int8.safetensors),
"text": $(report "$bin/galley-evaluate" text),
"text.int8": $(report "$bin/galley-evaluate" text weights=text.int8.safetensors),
"qat": $(report "$bin/galley-evaluate" qat),
"qat.int8": $(report "$bin/galley-evaluate" qat weights=qat.int8.safetensors),
"net.calib": $(report "$bin/galley-calibrate" --show net.calib),
"resumed.net": $resumed_net,
"resumed.text": $resumed_text
}
END
mv qat/stats.calib qat.calib
gzip -9n net.calib qat.calib

# Paths are relative to the working folder, so that the files do not depend on its location.
sed -i "s|$PWD/||; s|root: \$|root: ./|" */recipe.yaml
