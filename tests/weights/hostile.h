#pragma once
// Builds valid and hostile archives and pickles byte by byte, for the tests of the readers.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "libcore/weights/crc32.h"

namespace galley::hostile {

inline std::string little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

/// One stored entry, whose header fields can all be set to wrong values.
struct Entry {
  std::string name, data;
  std::string local_name = name;
  uint64_t size = data.size(), stored = data.size(), local_size = data.size();
  uint32_t crc = crc32_of(std::as_bytes(std::span(data)));
  uint32_t local_crc = crc;
  uint16_t method = 0, flags = 0, local_flags = flags;
  std::string extra, local_extra;
  int64_t offset_shift = 0;

  Entry(std::string name, std::string data) : name(std::move(name)), data(std::move(data)) {}
  Entry& with(const std::function<void(Entry&)>& change) {
    change(*this);
    return *this;
  }
};

inline std::string local_header(const Entry& e) {
  return "PK\x03\x04" + little(20, 2) + little(e.local_flags, 2) + little(e.method, 2) + little(0, 4) + little(e.local_crc, 4) +
         little(e.local_size, 4) + little(e.local_size, 4) + little(e.local_name.size(), 2) + little(e.local_extra.size(), 2) +
         e.local_name + e.local_extra;
}

struct End {
  int64_t count_shift = 0, size_shift = 0, offset_shift = 0;
  std::string before, between, comment;  ///< Bytes before the first entry, before the directory, after the end.
};

inline std::string make_zip(const std::vector<Entry>& entries, const End& end = {}) {
  std::string file = end.before, directory;
  for (const Entry& e : entries) {
    const int64_t offset = static_cast<int64_t>(file.size()) + e.offset_shift;
    file += local_header(e) + e.data;
    directory += "PK\x01\x02" + little(20, 2) + little(20, 2) + little(e.flags, 2) + little(e.method, 2) + little(0, 4) + little(e.crc, 4) +
                 little(e.stored, 4) + little(e.size, 4) + little(e.name.size(), 2) + little(e.extra.size(), 2) + little(0, 2) +
                 little(0, 2) + little(0, 2) + little(0, 4) + little(static_cast<uint64_t>(offset), 4) + e.name + e.extra;
  }
  file += end.between;
  const auto count = static_cast<uint64_t>(static_cast<int64_t>(entries.size()) + end.count_shift);
  const uint64_t at = file.size();
  return file + directory + "PK\x05\x06" + little(0, 4) + little(count, 2) + little(count, 2) +
         little(directory.size() + static_cast<uint64_t>(end.size_shift), 4) + little(at + static_cast<uint64_t>(end.offset_shift), 4) +
         little(end.comment.size(), 2) + end.comment;
}

// ---- pickles (opcodes of pickletools)

inline std::string text(const std::string& value) { return "X" + little(value.size(), 4) + value; }
inline std::string global(const std::string& module, const std::string& name) { return "c" + module + "\n" + name + "\n"; }
inline std::string integer(int64_t value) { return std::string("\x8a\x08", 2) + little(static_cast<uint64_t>(value), 8); }
inline std::string tuple(const std::string& items) { return "(" + items + "t"; }
inline std::string pickle(const std::string& body) { return std::string("\x80\x02", 2) + body + "."; }

/// A storage's persistent id.
struct StorageId {
  std::string type = "FloatStorage", key = "0";
  int64_t elements = 6;
};
inline std::string storage(const StorageId& id = {}) {
  return tuple(text("storage") + global("torch", id.type) + text(id.key) + text("cpu") + integer(id.elements)) + "Q";
}
inline std::string integers(const std::vector<int64_t>& values) {
  std::string items;
  for (const int64_t value : values) items += integer(value);
  return tuple(items);
}
inline std::string tensor(const std::string& storage_part, int64_t offset, const std::vector<int64_t>& shape,
                          const std::vector<int64_t>& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") +
         tuple(storage_part + integer(offset) + integers(shape) + integers(strides) + "\x89" + global("collections", "OrderedDict") +
               ")R") +
         "R";
}
inline std::string tensor() { return tensor(storage(), 0, {2, 3}, {3, 1}); }
/// {"w": value}
inline std::string dictionary(const std::string& value) { return "}" + text("w") + value + "s"; }

/// An archive of PyTorch around data.pkl, with one storage of six floats.
inline std::vector<Entry> archive(const std::string& data_pkl) {
  return {Entry("a/data.pkl", data_pkl), Entry("a/byteorder", "little"), Entry("a/data/0", std::string(24, '\0')),
          Entry("a/version", "3\n")};
}

}  // namespace galley::hostile
