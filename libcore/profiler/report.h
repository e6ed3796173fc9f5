#pragma once
// A profile with its advice as a JSON object and as a self-contained HTML page.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/profiler/advice.h"
#include "libcore/profiler/profile.h"

namespace galley {

/// A compiled program and the reason for its compilation.
struct ProfiledProgram {
  std::string program;  // "update", "accumulate", "forward"
  std::string reason;   // "batches of [8,3,224,224]"
  double seconds = 0;
  int64_t operators = 0;
  int64_t runs = 0;  // runs in total; all but the first found it compiled
};

struct ProfileReport {
  std::string recipe;  // name of the recipe
  std::string what;    // "train_step", "forward"
  int64_t batch = 0;   // samples per step
  int64_t threads = 1;
  bool synthetic = false;
  Profile profile;
  std::vector<Advice> advice;
  std::vector<ProfiledProgram> compilations;
  std::vector<std::string> remarks;  // remarks about the machine during the recording (MachineWatch::remarks)
};

/// {"recipe","what",…,"operators":[…],"modules":[…],"memory":{…},"advice":[…],"compilations":{…},"remarks":[…]}. The self times of
/// `operators`, which has a row "(executor)" and a row "(waiting for data)", sum to wall_ms. `recording`: the recording of the profile.
std::string report_json(const ProfileReport& report, const Recording& recording);

/// A self-contained HTML page with timeline, flame graph, memory, tables and advice; it makes no requests.
std::string report_html(const ProfileReport& report, const Recording& recording);

}  // namespace galley
