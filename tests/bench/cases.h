#pragma once
// The kernels to time and to count. An operator is written as for `galley-benchmark op`; this text is the name of the benchmark.

#include <functional>
#include <string>
#include <vector>

namespace galley::bench {

/// A prepared case; `run` computes once.
struct Work {
  std::function<void()> run;
  double flops = 0, bytes = 0;
};

struct Case {
  std::string name;
  std::function<Work()> make;
};

/// Makes the case of an operator from its text.
Case operator_case(const std::string& text);
/// The hot kernels in the sizes of ResNet-50, MobileNetV3-Large and a language model. Each takes at most seconds.
std::vector<Case> timed_cases();
/// Small cases of Galley's kernels for counting instructions. Their code does not depend on libraries.
std::vector<Case> counted_cases();

}  // namespace galley::bench
