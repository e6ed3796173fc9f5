#pragma once
// Offload: sharding.offload. Arrays that persist between steps are in memory-mapped files, and their pages leave memory as the step goes
// on.

#include <atomic>
#include <cstdint>

#include "libcore/device/disk_device.h"
#include "libcore/recipe/sharding_section.h"
#include "libcore/runtime/observer.h"
#include "libcore/runtime/parameter_store.h"

namespace galley {

/// Whether some arrays are on the disk.
bool offloads_to_disk(const ShardingSection& sharding);

/// Whether some arrays are in the memory of the host, where the device has another.
bool offloads_to_host(const ShardingSection& sharding);
/// Before a program is declared: makes the inputs that are offloaded to the host, in pinned memory, which the device's kernels reach.
void place_on_host(const Graph& graph, ParameterStore& store, const OffloadSection& section);

/// Bytes of used pages after which all pages are taken out of memory.
inline constexpr int64_t kOffloadWindow = int64_t{32} << 20;

/// As an observer of a step, releases pages when the nodes that ran have used enough of them.
class Offload : public NodeObserver {
 public:
  /// `disk` must outlive the arrays.
  Offload(DiskDevice& disk, const ShardingSection& sharding) : disk_(disk), section_(*sharding.offload) {}

  /// Before a program is declared: makes the inputs that are offloaded.
  void place(const Graph& graph, ParameterStore& store) const;
  /// Counts bytes of pages that were used, and releases all pages when there are many.
  void used(int64_t bytes);
  /// Releases pages as this observer does, and tells no other. Several threads may call it.
  NodeObserver* pages() { return &pages_; }
  /// This observer, which calls `inner` (null: none).
  NodeObserver* watch(NodeObserver* inner) {
    inner_ = inner;
    return this;
  }

  void before(const Program& program, const Step& step, Stream& stream) override;
  void after(const Program& program, const Step& step, const NodeOutputs& outputs) override;
  void after_run(const Program& program) override;
  void fetched(int64_t begin_ns, int64_t end_ns) override;
  void communicated(const std::string& what, int64_t begin_ns, int64_t end_ns) override;

 private:
  bool is_offloaded(const ValueInfo& value) const;

  DiskDevice& disk_;
  const OffloadSection& section_;
  NodeObserver* inner_ = nullptr;
  /// What the nodes of other programs use.
  class Pages : public NodeObserver {
   public:
    explicit Pages(Offload& of) : of_(of) {}
    void after(const Program& program, const Step& step, const NodeOutputs& /*outputs*/) override { of_.count(program, step); }

   private:
    Offload& of_;
  };
  void count(const Program& program, const Step& step);
  Pages pages_{*this};
  std::atomic<int64_t> used_{0};
};

}  // namespace galley
