#pragma once
// Runs kernels with each of the vector instruction sets for which they are compiled (Google Highway).

#include <hwy/targets.h>

#include <cstdint>

#include "tests/support/sanitizers.h"

namespace galley::test {

/// True in a build of the preset `sanitize`.
inline constexpr bool kSanitized = GALLEY_ASAN != 0;

/// During its lifetime, kernels use only these instruction sets (HWY_AVX2, ... or several). oneDNN and code that the compiler vectorizes
/// are not affected.
class Targets {
 public:
  explicit Targets(int64_t targets) { set(targets); }
  ~Targets() { set(0); }
  Targets(const Targets&) = delete;
  Targets& operator=(const Targets&) = delete;

 private:
  static void set(int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

/// Runs `body` with the machine's widest vectors and, if these are wider than AVX2's, with AVX2.
template <class Body>
void with_each_width(const Body& body) {
  body();
  if ((hwy::SupportedTargets() & HWY_AVX3) == 0) return;
  const Targets narrow(HWY_AVX2);
  body();
}

}  // namespace galley::test
