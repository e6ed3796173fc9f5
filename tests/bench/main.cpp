// bench_kernels: times the hot kernels with Google Benchmark (--help lists its options; --threads=N; --case=NAME:SHAPES for any operator,
// as in `galley-benchmark op`), or runs one of the counted cases for scripts/count-instructions:
//   bench_kernels --counted                lists the counted cases
//   bench_kernels --count=CASE --runs=N    runs a counted case, or any operator, N times inside galley_counted_run, after one run outside

#include <benchmark/benchmark.h>
#include <hwy/highway.h>

#include <cstdio>
#include <iostream>
#include <string_view>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "tests/bench/cases.h"

// A function whose name is given to callgrind, so that only its instructions are counted.
extern "C" [[gnu::noinline]] void galley_counted_run(const std::function<void()>& run) {
  run();
  asm volatile("" ::: "memory");  // prevents a tail call, so that the function returns after the work
}

namespace galley::bench {
namespace {

void time(benchmark::State& state, const Case& what) {
  const Work work = what.make();
  for (auto _ : state) work.run();
  const auto rate = [&](double of_one) {
    return benchmark::Counter(of_one * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
  };
  if (work.flops > 0) state.counters["FLOP/s"] = rate(work.flops);
  if (work.bytes > 0) state.counters["B/s"] = rate(work.bytes);
}

/// The instruction set of the kernels, and the compiler.
void print_class() {
  const int64_t targets = hwy::SupportedTargets();
  std::cout << "{\"target\": \"" << hwy::TargetName(targets & -targets) << "\", \"compiler\": \"GCC " << __GNUC__ << "." << __GNUC_MINOR__
            << "\"}\n";
}

int count(const std::string& name, int64_t runs) {
  Case chosen = operator_case(name);
  for (Case& what : counted_cases()) {
    if (what.name == name) chosen = std::move(what);
  }
  const Work work = chosen.make();
  work.run();
  for (int64_t i = 0; i < runs; ++i) galley_counted_run(work.run);
  print_class();
  return 0;
}

int run(int argc, char** argv) {
  std::string_view counted;
  int64_t runs = 1;
  std::vector<char*> rest;
  std::vector<Case> cases;
  for (int i = 0; i < argc; ++i) {
    const std::string_view word = argv[i];
    const size_t equals = word.find('=');
    const std::string_view value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
    if (word == "--counted") {
      for (const Case& what : counted_cases()) std::cout << what.name << "\n";
      return 0;
    }
    if (word.starts_with("--count=")) {
      counted = value;
    } else if (word.starts_with("--runs=")) {
      runs = parse_count(value);
    } else if (word.starts_with("--case=")) {
      cases.push_back(operator_case(std::string(value)));
    } else if (word.starts_with("--threads=")) {
      set_compute_threads(static_cast<int>(parse_count(value)));
    } else {
      rest.push_back(argv[i]);
    }
  }
  if (!counted.empty()) return count(std::string(counted), runs);
  int left = static_cast<int>(rest.size());
  benchmark::Initialize(&left, rest.data());
  if (benchmark::ReportUnrecognizedArguments(left, rest.data())) return 2;
  for (const Case& what : cases.empty() ? timed_cases() : cases) {
    benchmark::RegisterBenchmark(what.name.c_str(), [what](benchmark::State& state) { time(state, what); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  try {
    return galley::bench::run(argc, argv);
  } catch (const galley::Error& error) {
    std::cerr << "bench_kernels: " << error.message() << "\n";
    return 1;
  }
}
