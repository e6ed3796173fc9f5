#pragma once
// galley-benchmark: times recipes over sweeps, in turns; compares two of them; times single operators; measures the machine.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "libcore/profiler/benchmark_comparison.h"
#include "libcore/recipe/benchmark_cells.h"
#include "tools/common/recipe_tool.h"

namespace galley::tools {

class Journal;

/// Adds Ctrl-C and SIGTERM as stop conditions.
TimerOptions stoppable(TimerOptions options);
TimerOptions timer_options(const BenchmarkSection& section);
/// The overrides of the recipe for a cell.
std::vector<std::string> overrides_of(const BenchmarkCell& cell);
/// The cells of the recipe's benchmark section; errors have the place of their key.
std::vector<BenchmarkCell> cells_of(const LoadedRecipe& loaded);

class BenchmarkTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-benchmark"; }
  std::string about() const override { return "Times recipes, operators and the machine; compares two recipes or runs."; }
  std::string examples() const override {
    return "  galley-benchmark resnet.yaml what=forward,train_step batch=1,16 threads=1..4x2\n  galley-benchmark resnet.yaml --compare "
           "'memory_format=contiguous' 'memory_format=channels_last'\n"
           "  galley-benchmark op conv2d:mb16ic64ih56oc64kh3\n  galley-benchmark machine\n"
           "  mpirun -np 2 galley-benchmark collectives what=all_reduce sizes=4KiB,25MiB";
  }
  void add_options(Command& command) override;
  int run() override;

 protected:
  /// Only `collectives` is for several ranks; other verbs are refused.
  bool uses_ranks() const override { return !words_.empty() && words_.front() == "collectives"; }
  std::string section() const override { return "benchmark"; }
  bool prints_json_lines() const override { return true; }
  std::string output_help() const override { return "journal of finished cells (JSON lines); a repeated command skips the cells in it"; }
  int run_recipe(LoadedRecipe&) override { return kExitDone; }

 private:
  /// A cell of a sweep: its rows, of which some may be known from the journal or have failed, and the workloads to be timed for the others.
  struct CellWork {
    std::vector<BenchmarkRow> rows;
    std::vector<BenchmarkWork> works;
    std::vector<size_t> timed;  // index of the row of each workload
    std::optional<ErrorCode> error;
  };
  /// One side of a comparison: a recipe with overrides, or saved rows.
  struct Side {
    std::string recipe;
    std::vector<std::string> overrides;
    std::vector<BenchmarkRow> saved;
  };
  int sweep(const std::vector<std::string>& recipes);
  int print_cells(const std::vector<std::string>& recipes, const std::vector<BenchmarkCell>& cells, double at_most) const;
  /// An error about a recipe with these overrides, with the place of its key.
  Error placed(const Error& error, const std::string& recipe, const std::vector<std::string>& more) const;
  CellWork make_cell(const std::vector<std::string>& recipes, const BenchmarkCell& cell, const Journal& journal) const;
  int run_cells(const std::vector<std::string>& recipes, const std::vector<BenchmarkCell>& cells, const TimerOptions& timing,
                Journal& journal);

  int compare(const std::vector<std::string>& recipes);
  static Side side_of(const std::string& text, const std::vector<std::string>& recipes);
  /// `cells`: number of cells in the whole comparison.
  BenchmarkWork work_of(const Side& side, const BenchmarkCell& cell, size_t cells) const;
  int compare_recipes(const Side& base, const Side& changed, const MachineWatch& watch);
  int report_comparison(const std::vector<CellComparison>& compared, const MachineWatch& watch) const;

  int measure_machine(const std::string& verb, const std::vector<std::string>& rest, const std::vector<std::string>& given);
  /// Times collectives between the ranks of mpirun or srun, or between threads.
  int measure_collectives(const std::vector<std::string>& given);
  int measure_operators(const std::vector<std::string>& cases, bool winograd);
  int measure_machine_parts();
  int measure_device_limits(const std::string& device);
  int measure_memory_order();

  LoadOptions options_with(const std::vector<std::string>& more) const;
  /// The recipe with what its weights' names stand for, and its paths absolute.
  std::unique_ptr<LoadedRecipe> load(const std::string& recipe, const std::vector<std::string>& more) const;
  /// Reports that Ctrl-C or SIGTERM ended the work and what is saved; returns the exit code.
  int stopped(size_t cells_done, size_t cells, bool keeps_journal) const;
  Provenance run_provenance() const;
  /// Prints a result other than rows (--compare, machine) as JSON or as a table, and saves it as --save specifies.
  void report_object(const nlohmann::ordered_json& json, const Table& table) const;
  /// Writes the rows in the requested format to stdout and to the outputs of --save, --html and --sqlite.
  void report(const std::vector<BenchmarkRow>& rows, const std::vector<std::string>& remarks);

  std::vector<std::string> compare_;
  std::string html_, sqlite_;
  std::string standard_input_;
  int64_t simulated_ranks_ = 0;  // threads of this process; 0: not given
};

}  // namespace galley::tools
