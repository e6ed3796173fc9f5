#pragma once
// DataLoader::State: what a loader holds. loader.cpp has the order of batches and the workers, loader_rows.cpp the fields of a batch and
// their rows, loader_sizes.cpp fields whose length or size differs between batches.

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "libcore/data/loader.h"

namespace galley {

class DataLoader::State {
 public:
  /// An event of a sample, counted by its cause.
  struct Finding {
    int64_t row = 0;
    std::string cause, message;
  };

  /// Findings of the rows of one batch.
  struct Findings {
    std::vector<Finding> skipped;    // damaged samples that were replaced
    std::vector<Finding> irregular;  // files that deviate from their format but were read
    std::map<int64_t, std::string> unreadable;

    void add(const Findings& others) {
      skipped.insert(skipped.end(), others.skipped.begin(), others.skipped.end());
      irregular.insert(irregular.end(), others.irregular.begin(), others.irregular.end());
      unreadable.insert(others.unreadable.begin(), others.unreadable.end());
    }
  };

  /// A batch in preparation. Workers take rows in chunks; `missing` counts the rows that are not written yet.
  struct Slot {
    Batch batch;
    std::map<std::string, Tensor> full;  // the fields of a batch that is not cut
    int64_t handed_out = 0;
    int64_t missing = 0;
    bool ready = false;
    int64_t next = 0;  // position after the batch, with the parts of other ranks
    double share = 1;
    Findings findings;
    std::map<std::string, std::vector<Tensor>> jagged;  // per jagged field: its rows, until all of them are read
    std::map<std::string, std::vector<Tensor>> sized;   // the same of images of different size, which are dense
    std::exception_ptr error;
    int64_t error_row = 0;
  };

  State(std::shared_ptr<const Source> source, Pipeline pipeline, const std::vector<Component>& batch_transforms, LoaderOptions options);
  ~State();

  const Batch* next();
  int64_t position() const { return delivered_; }
  int64_t epoch_samples() const { return order_.epoch_samples(); }
  int64_t total_samples() const { return end_.value_or(0); }
  const Source& source() const { return *source_; }
  std::optional<PixelGrid> grid(int64_t height, int64_t width, int64_t index) const {
    return pipeline_.grid(height, width, {options_.order.seed, 0, index});
  }
  const std::vector<FieldType>& types() const { return types_; }
  const std::map<std::string, Tensor>& layout() const { return slots_.front().full; }
  const std::vector<int64_t>& lengths() const { return lengths_; }
  const std::vector<std::array<int64_t, 2>>& sizes() const { return sizes_; }
  const PixelConversions& pixels() const { return pixels_; }
  const std::string& float_reason() const { return float_reason_; }
  int64_t buffer_bytes() const;
  double share() const { return share_; }
  const SkipReport& skips() const { return skips_; }
  const IrregularReport& irregular() const { return irregular_; }

 private:
  Sample read_prepared(int64_t position, Findings& findings, int64_t row, int64_t& index) const;
  Sample first_sample(int64_t& index) const;
  void find_types();
  void find_bytes();
  MemoryFormat format_of(const FieldType& type, int rank) const;
  void make_buffers();
  void group_samples();
  void cut(Slot& slot) const;
  size_t smallest(int64_t rows, int64_t columns) const;
  std::array<int64_t, 2> canvas_of(const Slot& slot) const;
  void place_images(Slot& slot) const;
  /// Where a rank's part of a full batch begins.
  int64_t part_begin(int64_t rank) const { return options_.order.batch * rank / options_.ranks; }
  int64_t part_rows() const { return part_begin(options_.rank + 1) - part_begin(options_.rank); }
  bool begin_batch(Slot& slot);
  void check_value(const FieldType& type, const FieldValue& value, int64_t index) const;
  void fill_field(Slot& slot, const FieldType& type, const Sample& sample, int64_t row, int64_t index) const;
  void join_jagged(Slot& slot, const FieldType& type) const;
  void clear_padding(Batch& batch, const FieldType& type) const;
  void fill_row(Slot& slot, int64_t row, Findings& findings) const;
  void clear_row(Slot& slot, const FieldType& type, int64_t row) const;
  void fill_or_report(Slot& slot, int64_t row, Findings& findings) const;
  void fill_rows(Slot& slot, int64_t begin, int64_t end);
  void finish_batch(Slot& slot) const;
  void deliver(Slot& slot);
  void work();

  std::shared_ptr<const Source> source_;
  Pipeline pipeline_;
  std::vector<std::unique_ptr<Options>> batch_transforms_;
  std::vector<FieldType> types_;               // fields of a batch
  std::vector<int64_t> lengths_;               // of batches that are cut
  std::vector<std::array<int64_t, 2>> sizes_;  // of the canvases of batches
  PixelConversions pixels_;                    // of fields in bytes
  std::string float_reason_;
  LoaderOptions options_;
  SampleOrder order_;
  std::optional<int64_t> end_;  // position after the last sample
  std::vector<Slot> slots_;
  SkipReport skips_;
  IrregularReport irregular_;
  int64_t delivered_ = 0;   // position of the next batch to deliver
  double share_ = 1;        // of the batch that was delivered last
  std::deque<Slot*> held_;  // the batches that the caller holds, the oldest first

  // Shared with the workers; guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable work_arrived_, batch_ready_;
  std::deque<Slot*> free_, pending_;  // pending_ is in the order of delivery
  int64_t begun_ = 0;                 // position of the next batch to begin
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace galley
