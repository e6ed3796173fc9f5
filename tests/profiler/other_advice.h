#pragma once
// Advice without below_limit, for tests of the other rules: a planted bottleneck may also put the step below half of the machine's limit.

#include <vector>

#include "libcore/profiler/advice.h"

namespace galley::test {

inline std::vector<Advice> other_advice(const Profile& profile, const ProfileFacts& facts) {
  std::vector<Advice> advice = advise(profile, facts);
  std::erase_if(advice, [](const Advice& item) { return item.code == "below_limit"; });
  return advice;
}

}  // namespace galley::test
