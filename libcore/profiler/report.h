#pragma once
// A profile with its advice, as one JSON object and as one HTML page that needs nothing else.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/profiler/advice.h"
#include "libcore/profiler/profile.h"

namespace galley {

/// A program that was compiled, and why.
struct ProfiledProgram {
  std::string program;  // "update", "accumulate", "forward"
  std::string reason;   // "batches of [8,3,224,224]"
  double seconds = 0;
  int64_t operators = 0;
  int64_t runs = 0;  // of the whole work; every one after the first found it ready
};

struct ProfileReport {
  std::string recipe;  // name
  std::string what;    // "train_step", "forward"
  int64_t batch = 0;   // samples a step
  int64_t threads = 1;
  bool synthetic = false;
  Profile profile;
  std::vector<Advice> advice;
  std::vector<ProfiledProgram> compilations;
  std::vector<std::string> remarks;  // about the machine during the recording: MachineWatch::remarks
};

/// {"recipe","what",…,"operators":[…],"modules":[…],"memory":{…},"advice":[…],"compilations":{…},"remarks":[…]}. The self times of
/// `operators`, which has a row "(executor)" and a row "(waiting for data)", sum to wall_ms. `recording`: what the profile was made of.
std::string report_json(const ProfileReport& report, const Recording& recording);

/// A page with timeline, flame graph, memory, tables and advice; scripts and styles inside, no request leaves it.
std::string report_html(const ProfileReport& report, const Recording& recording);

}  // namespace galley
