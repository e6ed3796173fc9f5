#pragma once
// Which kernels are timed and counted. An operator is written as for `galley-benchmark op`: its name and its shapes are the benchmark's
// name.

#include <functional>
#include <string>
#include <vector>

namespace galley::bench {

/// Ready to run: `run` computes once, on what `make` of its case has set up.
struct Work {
  std::function<void()> run;
  double flops = 0, bytes = 0;
};

struct Case {
  std::string name;
  std::function<Work()> make;
};

/// An operator by its text.
Case operator_case(const std::string& text);
/// The hot kernels, in the sizes of ResNet-50, MobileNetV3-Large and a language model: seconds of time each at most.
std::vector<Case> timed_cases();
/// Small sizes of kernels of our own, for counting instructions: their code depends on no library.
std::vector<Case> counted_cases();

}  // namespace galley::bench
