#pragma once
// Advice without below_limit, for tests of the other rules: a planted bottleneck may also put the step below half of the machine's limit.

#include <gtest/gtest.h>

#include <vector>

#include "libcore/profiler/advice.h"

namespace galley::test {

inline std::vector<Advice> other_advice(const Profile& profile, const ProfileFacts& facts) {
  std::vector<Advice> advice = advise(profile, facts);
  std::erase_if(advice, [](const Advice& item) { return item.code == "below_limit"; });
  return advice;
}

/// The advice with that code, which must be the only one besides below_limit.
inline Advice only(const Profile& profile, const ProfileFacts& facts, const std::string& code) {
  const std::vector<Advice> advice = other_advice(profile, facts);
  EXPECT_EQ(advice.size(), 1u);
  for (const Advice& item : advice) EXPECT_EQ(item.code, code) << item.message;
  return advice.empty() ? Advice() : advice.front();
}

}  // namespace galley::test
