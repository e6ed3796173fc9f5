#!/usr/bin/env bash
# Makes the files of this folder with the programs of a build from before 2026-11-25, in which attention was not an operator: weights,
# statistics of galley-calibrate, and the int8 weights made from them (tests/cli/compat_test.cpp).
#
#   tests/golden/compat_attention/make.sh BIN        BIN: a folder of programs, such as build/bin
set -euo pipefail
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")"
rm -rf run ./*.safetensors ./*.calib.gz
for net in vit swin swin_v2; do
  "$bin/galley-train" "$net.yaml" -o run -q >/dev/null
  "$bin/galley-calibrate" run -o "$net.calib" -q >/dev/null
  "$bin/galley-quantize" run --calibration "$net.calib" -o "$net.int8.safetensors" -q >/dev/null
  mv run/weights.safetensors "$net.safetensors"
  rm -r run
  gzip -9n "$net.calib"
done
# Ranges of quantization-aware training: only those of quantized values.
"$bin/galley-train" vit.yaml quantize.method=qat quantize.qat.start="1 steps" -o run -q >/dev/null
"$bin/galley-quantize" run -o vit_qat.int8.safetensors -q >/dev/null
mv run/weights.safetensors vit_qat.safetensors
mv run/stats.calib vit_qat.calib
rm -r run
gzip -9n vit_qat.calib
