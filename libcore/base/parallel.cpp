#include "libcore/base/parallel.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

namespace galley {
namespace {
int threads_in_use = 0;
thread_local int share_of_this_thread = 0;
}  // namespace

ThreadShare::ThreadShare(int threads) : saved_(share_of_this_thread), saved_pool_(omp_get_max_threads()) {
  share_of_this_thread = std::max(1, threads);
  omp_set_num_threads(share_of_this_thread);  // of this thread alone: the vendor library asks for it
}

ThreadShare::~ThreadShare() {
  share_of_this_thread = saved_;
  omp_set_num_threads(saved_pool_);
}

int available_cores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (quota_file >> quota >> period && quota != "max" && period > 0) {
    cores = std::min(cores, std::max(1, static_cast<int>(std::stod(quota) / period + 0.5)));
  }
  return std::max(1, cores);
}

int compute_threads() { return share_of_this_thread > 0 ? share_of_this_thread : threads_in_use > 0 ? threads_in_use : available_cores(); }

void set_compute_threads(int threads) {
  threads_in_use = std::max(1, threads);
  omp_set_num_threads(threads_in_use);
  omp_set_dynamic(0);
}

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t parts = std::min<int64_t>(compute_threads(), (count + std::max<int64_t>(grain, 1) - 1) / std::max<int64_t>(grain, 1));
  if (parts <= 1) {
    body(0, count);
    return;
  }
  std::vector<std::exception_ptr> errors(static_cast<size_t>(parts));
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    try {
      body(count * part / parts, count * (part + 1) / parts);
    } catch (const std::exception&) {
      errors[static_cast<size_t>(part)] = std::current_exception();
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace galley
