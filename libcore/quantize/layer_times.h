#pragma once
// Times of layers in float and quantized: runs both programs alternately on one random batch.

#include <cstdint>
#include <map>
#include <string>

#include "libcore/quantize/model_quantizer.h"

namespace galley {

/// Time and work of a layer.
struct LayerTime {
  double seconds = 0;           // median over the rounds
  double flops = 0, bytes = 0;  // executed in one run; bytes: each operand read or written once
};

/// Times of one program.
struct ProgramTimes {
  std::map<std::string, LayerTime> layers;  // convolutions, linear layers and unfolded batch norms, by LayerPlan::name
  LayerTime all;                            // of the whole program
};

/// Times of the float program (`real`) and the quantized program.
struct QuantizationTimes {
  ProgramTimes real, quantized;
  int rounds = 0;
};

/// Runs both programs `rounds` times after a warm-up and times every operator.
QuantizationTimes time_layers(const Session& session, ModelQuantizer& quantizer, const QuantizedModel& model, int64_t batch, int rounds);

}  // namespace galley
