// parse_safetensors: parses the header of a safetensors file with the JSON parser's event interface (a parsed document would silently keep
// only the last of duplicate keys).

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "libcore/base/error.h"
#include "libcore/weights/safetensors.h"

namespace galley {
namespace {

using nlohmann::json;

struct FileType {
  std::string_view text;
  int bits;
  std::optional<DType> dtype;
};
constexpr std::array<FileType, 22> kFileTypes{{
    {"F32", 32, DType::kF32},
    {"F64", 64, DType::kF64},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I64", 64, DType::kI64},
    {"I32", 32, DType::kI32},
    {"I16", 16, DType::kI16},
    {"I8", 8, DType::kI8},
    {"U8", 8, DType::kU8},
    {"BOOL", 8, DType::kBool},
    {"U16", 16, {}},
    {"U32", 32, {}},
    {"U64", 64, {}},
    {"F8_E4M3", 8, DType::kF8E4M3},
    {"F8_E5M2", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
    {"C64", 64, {}},
}};

const FileType& file_type(const std::string& text, const std::string& tensor) {
  for (const FileType& type : kFileTypes) {
    if (type.text == text) return type;
  }
  std::string known;
  for (const FileType& type : kFileTypes) known += (known.empty() ? "" : ", ") + std::string(type.text);
  fail(ErrorCode::kInput, "tensor '", tensor, "' has the unknown dtype '", text, "' (valid dtypes: ", known, ")");
}

/// Receives the parser's events and accepts only {"__metadata__": {string: string...}, name: {dtype, shape, data_offsets}...}.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(SafetensorsTable& table) : table_(table) {}

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { unexpected(cat("the negative number ", value)); }
  bool number_float(number_float_t, const string_t& text) override { unexpected(cat("the number ", text)); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) unexpected(cat("the number ", value));
    GALLEY_CHECK_INPUT(value <= static_cast<uint64_t>(INT64_MAX), "tensor '", entry_.name, "' has the number ", value, " in its ", field_,
                       ", which exceeds 63 bits");
    if (state_ == State::kShape) {
      GALLEY_CHECK_INPUT(entry_.shape.rank() < Shape::kMaxRank, "tensor '", entry_.name, "' has more than ", Shape::kMaxRank,
                         " dimensions");
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else {
      GALLEY_CHECK_INPUT(offsets_ < 2, "tensor '", entry_.name, "' has more than two data_offsets");
      (offsets_++ == 0 ? entry_.begin : entry_.end) = static_cast<int64_t>(value);
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      table_.metadata[field_] = value;
    } else if (state_ == State::kTensor && field_ == "dtype") {
      const FileType& type = file_type(value, entry_.name);
      entry_.dtype_text = value;
      entry_.dtype = type.dtype;
      bits_ = type.bits;
    } else {
      unexpected(cat("the string \"", value.substr(0, 40), "\""));
    }
    return true;
  }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart: state_ = State::kTop; return true;
      case State::kTop:
        if (field_ == "__metadata__") {
          state_ = State::kMetadata;
        } else {
          state_ = State::kTensor;
          entry_ = {};
          entry_.name = field_;
          bits_ = offsets_ = 0;
          seen_.fill(false);
        }
        return true;
      default: unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    field_ = name;
    if (state_ == State::kTop) {
      if (name == "__metadata__") {
        GALLEY_CHECK_INPUT(!has_metadata_, "the header has the key '__metadata__' twice");
        has_metadata_ = true;
        return true;
      }
      GALLEY_CHECK_INPUT(names_.insert(name).second, "the header has the tensor '", name, "' twice");
      GALLEY_CHECK_INPUT(static_cast<int64_t>(names_.size()) <= kSafetensorsEntryLimit, "the header has more than ", kSafetensorsEntryLimit,
                         " tensors");
    } else if (state_ == State::kMetadata) {
      GALLEY_CHECK_INPUT(table_.metadata.count(name) == 0, "the metadata has the key '", name, "' twice");
      // Galley's files have a digest for each tensor and a few more keys.
      GALLEY_CHECK_INPUT(static_cast<int64_t>(table_.metadata.size()) < 2 * kSafetensorsEntryLimit, "the metadata has more than ",
                         2 * kSafetensorsEntryLimit, " keys");
    } else {
      const size_t which = static_cast<size_t>(std::find(kFields.begin(), kFields.end(), name) - kFields.begin());
      GALLEY_CHECK_INPUT(which < kFields.size(), "tensor '", entry_.name, "' has the unknown field '", name,
                         "' (the format has dtype, shape, data_offsets)");
      GALLEY_CHECK_INPUT(!seen_[which], "tensor '", entry_.name, "' has the field '", name, "' twice");
      seen_[which] = true;
    }
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::kTensor && field_ == "shape") {
      state_ = State::kShape;
    } else if (state_ == State::kTensor && field_ == "data_offsets") {
      state_ = State::kOffsets;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      for (size_t i = 0; i < kFields.size(); ++i) GALLEY_CHECK_INPUT(seen_[i], "tensor '", entry_.name, "' has no ", kFields[i]);
      GALLEY_CHECK_INPUT(offsets_ == 2, "tensor '", entry_.name, "' has ", offsets_, " data_offsets, but must have two");
      check_size();
      table_.entries.push_back(std::move(entry_));
    }
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    fail(ErrorCode::kInput, "the header is not valid JSON at its byte ", position, ": ", error.what());
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

  [[noreturn]] void unexpected(const std::string& what) const {
    switch (state_) {
      case State::kMetadata: fail(ErrorCode::kInput, "metadata '", field_, "' is ", what, ", but must be a string");
      case State::kStart:
      case State::kEnd: fail(ErrorCode::kInput, "the header is ", what, " instead of an object");
      case State::kTop: fail(ErrorCode::kInput, "'", field_, "' is ", what, " instead of an object");
      default: fail(ErrorCode::kInput, "tensor '", entry_.name, "' has ", what, " in its ", field_);
    }
  }

  void check_size() const {
    GALLEY_CHECK_INPUT(entry_.begin <= entry_.end, "tensor '", entry_.name, "' ends (", entry_.end, ") before it begins (", entry_.begin,
                       ")");
    int64_t bits = bits_;
    bool fits = true;
    for (const int64_t size : entry_.shape) fits = fits && !__builtin_mul_overflow(bits, size, &bits);
    GALLEY_CHECK_INPUT(fits, "the size of tensor '", entry_.name, "' (", entry_.dtype_text, " ", entry_.shape, ") exceeds 63 bits");
    GALLEY_CHECK_INPUT(bits % 8 == 0, "tensor '", entry_.name, "' (", entry_.dtype_text, " ", entry_.shape,
                       ") is not a whole number of bytes");
    GALLEY_CHECK_INPUT(entry_.end - entry_.begin == bits / 8, "tensor '", entry_.name, "' (", entry_.dtype_text, " ", entry_.shape,
                       ") needs ", bits / 8, " bytes, but its data_offsets span ", entry_.end - entry_.begin);
  }

  SafetensorsTable& table_;
  State state_ = State::kStart;
  std::string field_;
  SafetensorsEntry entry_;
  int bits_ = 0;
  int offsets_ = 0;
  std::array<bool, 3> seen_{};
  bool has_metadata_ = false;
  std::unordered_set<std::string> names_;
};

/// Sets the formats and logical shapes of the entries listed in the metadata.
void apply_formats(SafetensorsTable& table) {
  const auto stored = table.metadata.find(std::string(kMemoryFormatKey));
  if (stored == table.metadata.end()) return;
  const auto formats = nlohmann::json::parse(stored->second, nullptr, /*allow_exceptions=*/false);
  GALLEY_CHECK_INPUT(formats.is_object(), kMemoryFormatKey, " is not a JSON object");
  std::map<std::string_view, SafetensorsEntry*> by_name;
  for (SafetensorsEntry& entry : table.entries) by_name[entry.name] = &entry;
  for (const auto& [name, value] : formats.items()) {
    const auto found = by_name.find(name);
    GALLEY_CHECK_INPUT(found != by_name.end(), kMemoryFormatKey, " lists '", name, "', which is not in the file");
    SafetensorsEntry* entry = found->second;
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    const int rank = text == "channels_last" ? 4 : text == "channels_last_3d" ? 5 : -1;
    GALLEY_CHECK_INPUT(rank > 0, kMemoryFormatKey, " of '", name, "' is '", text, "', but must be channels_last or channels_last_3d");
    GALLEY_CHECK_INPUT(entry->shape.rank() == rank, kMemoryFormatKey, " of '", name, "' is ", text, ", which is not possible for rank ",
                       entry->shape.rank());
    entry->format = MemoryFormat::parse(text);
    Shape logical = entry->shape;
    const std::vector<int> order = entry->format.order(rank);
    for (int i = 0; i < rank; ++i) logical[order[static_cast<size_t>(i)]] = entry->shape[i];
    entry->shape = logical;
  }
}

}  // namespace

SafetensorsTable parse_safetensors(std::span<const std::byte> file, int64_t file_bytes) {
  GALLEY_CHECK_INPUT(file_bytes >= 8 && file.size() >= 8, "a safetensors file must have at least 8 bytes, this one has ", file_bytes);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint64_t>(file[static_cast<size_t>(i)]);
  GALLEY_CHECK_INPUT(length <= static_cast<uint64_t>(kSafetensorsHeaderLimit), "the header would have ", length,
                     " bytes, but the format allows at most ", kSafetensorsHeaderLimit, ": not a safetensors file");
  GALLEY_CHECK_INPUT(static_cast<int64_t>(length) <= file_bytes - 8, "the header should have ", length, " bytes, but only ", file_bytes - 8,
                     " bytes follow: the file is truncated");
  GALLEY_ASSERT(file.size() >= 8 + length);
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  GALLEY_CHECK_INPUT(length >= 2 && text[0] == '{', "the header does not start with '{': not a safetensors file");

  SafetensorsTable table;
  table.data_begin = 8 + static_cast<int64_t>(length);
  HeaderReader reader(table);
  json::sax_parse(text, text + length, &reader);

  // The values must cover the rest of the file without gaps.
  std::sort(table.entries.begin(), table.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  const int64_t data_bytes = file_bytes - table.data_begin;
  int64_t covered = 0;
  for (SafetensorsEntry& entry : table.entries) {
    GALLEY_CHECK_INPUT(entry.end <= data_bytes, "tensor '", entry.name, "' ends at byte ", entry.end, " of the data, but the data has ",
                       data_bytes, " bytes: the file is truncated or damaged");
    GALLEY_CHECK_INPUT(entry.begin >= covered, "tensor '", entry.name, "' begins at byte ", entry.begin,
                       " of the data and overlaps the tensor before it, which ends at ", covered);
    GALLEY_CHECK_INPUT(entry.begin == covered, "bytes ", covered, " to ", entry.begin, " before tensor '", entry.name,
                       "' belong to no tensor");
    covered = entry.end;
    entry.begin += table.data_begin;
    entry.end += table.data_begin;
  }
  GALLEY_CHECK_INPUT(covered == data_bytes, "the file has ", data_bytes - covered, " bytes after its last tensor");
  apply_formats(table);
  return table;
}

}  // namespace galley
