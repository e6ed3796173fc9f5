#pragma once
// galley-benchmark: recipes timed over sweeps, in turns; two of them compared; single operators; the machine itself.

#include <memory>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "libcore/profiler/timer.h"
#include "tools/benchmark/candidate.h"
#include "tools/common/recipe_tool.h"

namespace galley::tools {

class BenchmarkTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-benchmark"; }
  std::string about() const override { return "Times recipes, operators and the machine; compares two recipes or runs."; }
  std::string examples() const override {
    return "  galley-benchmark resnet.yaml what=forward,train_step batch=1,16 threads=1..4x2\n  galley-benchmark resnet.yaml --compare 'memory_format=contiguous' 'memory_format=channels_last'\n"
           "  galley-benchmark op conv2d:mb16ic64ih56oc64kh3\n  galley-benchmark machine";
  }
  void add_options(CLI::App& app) override;
  int run() override;

 protected:
  std::string section() const override { return "benchmark"; }
  bool prints_json_lines() const override { return true; }
  std::string output_help() const override { return "journal of finished cells (JSON lines): run again, those in it are not measured again"; }
  int run_recipe(LoadedRecipe&) override { return kExitDone; }

 private:
  int sweep(const std::vector<std::string>& recipes);
  int compare(const std::vector<std::string>& recipes);
  int measure_operators(const std::vector<std::string>& cases, bool winograd);
  int measure_machine_parts();
  int measure_memory_order();

  LoadOptions options_with(const std::vector<std::string>& more) const;
  /// The recipe with what its weights' names stand for, its paths absolute, its threads and device in effect.
  std::unique_ptr<LoadedRecipe> load(const std::string& recipe, const std::vector<std::string>& more) const;
  TimerOptions timer_options(const BenchmarkSection& section) const;
  /// Says that Ctrl-C or SIGTERM ended the work, and what is kept of it: the exit code.
  int stopped(size_t cells_done, size_t cells, bool keeps_journal) const;
  Provenance who() const;
  /// A result that is no list of rows (--compare, machine): as JSON or as a table, on stdout and where --save says.
  void report_object(const nlohmann::ordered_json& json, const Table& table) const;
  /// Rows in the format that was asked for, to stdout, the files of --save, the page of --html and the database of --sqlite.
  void report(const std::vector<Row>& rows, const std::vector<std::string>& remarks);

  std::vector<std::string> compare_;
  std::string html_, sqlite_;
  std::string standard_input_;
};

}  // namespace galley::tools
