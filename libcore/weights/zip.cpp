#include "libcore/weights/zip.h"

#include <algorithm>
#include <unordered_set>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr uint32_t kLocalMark = 0x04034b50, kDescriptorMark = 0x08074b50, kCentralMark = 0x02014b50, kEndMark = 0x06054b50,
                   kEnd64Mark = 0x06064b50, kLocator64Mark = 0x07064b50;
constexpr int64_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kEnd64Size = 56, kLocator64Size = 20;
constexpr uint32_t kIn64 = 0xffffffff;  // the number is in the zip64 field
constexpr uint16_t kDescriptorFlag = 1 << 3, kUtf8Flag = 1 << 11;
constexpr uint16_t kZip64Extra = 0x0001, kPaddingExtra = 0x4246;  // "FB": PyTorch pads with it to align values

/// Reads little-endian numbers with bounds checks.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> file) : file_(file) {}
  int64_t size() const { return static_cast<int64_t>(file_.size()); }
  bool holds(int64_t at, int64_t count) const { return at >= 0 && count >= 0 && at <= size() && count <= size() - at; }
  uint64_t number(int64_t at, int count) const {
    GALLEY_CHECK_INPUT(holds(at, count), "the archive ends inside a header, at byte ", size(), ": it is truncated");
    uint64_t value = 0;
    for (int i = 0; i < count; ++i) value |= static_cast<uint64_t>(file_[static_cast<size_t>(at + i)]) << (8 * i);
    return value;
  }
  uint16_t u16(int64_t at) const { return static_cast<uint16_t>(number(at, 2)); }
  uint32_t u32(int64_t at) const { return static_cast<uint32_t>(number(at, 4)); }
  int64_t i64(int64_t at, std::string_view what) const {
    const uint64_t value = number(at, 8);
    GALLEY_CHECK_INPUT(value <= static_cast<uint64_t>(INT64_MAX), "the archive's ", what, " (", value, ") exceeds 63 bits");
    return static_cast<int64_t>(value);
  }
  std::string_view text(int64_t at, int64_t count) const {
    GALLEY_CHECK_INPUT(holds(at, count), "the archive ends inside a name, at byte ", size(), ": it is truncated");
    return {reinterpret_cast<const char*>(file_.data()) + at, static_cast<size_t>(count)};
  }

 private:
  std::span<const std::byte> file_;
};

struct Directory {
  int64_t begin = 0, bytes = 0, entries = 0;
};

/// The fields that both headers of an entry contain.
struct Header {
  uint16_t version, flags, method, time, date;
  uint32_t crc32;
  int64_t stored_bytes, bytes;
};

/// Finds the end record, which must be the last bytes of the file (comments are rejected, so it cannot be elsewhere), and before it the
/// 64-bit one if present.
Directory find_directory(const Bytes& file) {
  const int64_t end = file.size() - kEndSize;
  GALLEY_CHECK_INPUT(end >= 0 && file.u32(end) == kEndMark && file.u16(end + 20) == 0,
                     "the archive does not end with a zip directory (and no comment): it is truncated, or something was appended");
  GALLEY_CHECK_INPUT(file.u16(end + 4) == 0 && file.u16(end + 6) == 0, "the archive is split over several disks, which is not supported");
  Directory directory{file.u32(end + 16), file.u32(end + 12), file.u16(end + 10)};
  GALLEY_CHECK_INPUT(file.u16(end + 8) == directory.entries, "the archive's two entry counts differ: ", file.u16(end + 8), " and ",
                     directory.entries);
  int64_t directory_end = end;
  const int64_t locator = end - kLocator64Size;
  if (locator >= 0 && file.u32(locator) == kLocator64Mark) {
    const int64_t at = file.i64(locator + 8, "offset of the 64-bit end record");
    GALLEY_CHECK_INPUT(file.u32(locator + 4) == 0 && file.u32(locator + 16) == 1,
                       "the archive is split over several disks, which is not supported");
    GALLEY_CHECK_INPUT(at == locator - kEnd64Size && file.u32(at) == kEnd64Mark &&
                           file.i64(at + 4, "64-bit end record") == kEnd64Size - 12 && file.number(at + 16, 8) == 0,
                       "the archive's 64-bit end record is not at its required position");
    const Directory wide{file.i64(at + 48, "directory offset"), file.i64(at + 40, "directory size"), file.i64(at + 32, "entry count")};
    GALLEY_CHECK_INPUT(file.i64(at + 24, "entry count") == wide.entries, "the archive's two entry counts differ");
    const auto agrees = [](int64_t narrow, int64_t value, int64_t mark) { return narrow == mark || narrow == value; };
    GALLEY_CHECK_INPUT(agrees(directory.begin, wide.begin, kIn64) && agrees(directory.bytes, wide.bytes, kIn64) &&
                           agrees(directory.entries, wide.entries, 0xffff),
                       "the archive's two end records differ");
    directory = wide;
    directory_end = at;
  }
  GALLEY_CHECK_INPUT(directory.entries <= kZipEntryLimit, "the archive has ", directory.entries, " entries, but at most ", kZipEntryLimit,
                     " are allowed");
  GALLEY_CHECK_INPUT(directory.begin <= directory_end && directory.bytes == directory_end - directory.begin,
                     "the archive's directory (bytes ", directory.begin, " to ", directory.begin, "+", directory.bytes,
                     ") does not end where its end record begins (", directory_end, ")");
  return directory;
}

void check_name(std::string_view name) {
  const auto refuse = [&](std::string_view why) { fail(ErrorCode::kInput, "the archive's entry '", name, "' ", why); };
  if (name.empty() || name.size() > 1024) refuse("has a name that is empty or longer than 1024 bytes");
  if (name.front() == '/') refuse("has an absolute name");
  for (const char letter : name) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == '\\' || letter == ':' || letter == 0x7f)
      refuse("has a character in its name that PyTorch's files do not use");
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") refuse("has a name with an empty part, '.' or '..'");
    begin = end + 1;
  }
}

/// Reads the extra fields of a header: 64-bit sizes, in fixed order, for the numbers that refer to them, and padding.
void read_extra(const Bytes& file, int64_t at, int64_t count, std::string_view name, std::vector<int64_t*> wide) {
  const int64_t end = at + count;
  while (at < end) {
    GALLEY_CHECK_INPUT(end - at >= 4 && file.u16(at + 2) <= end - at - 4, "entry '", name, "' has an extra field that exceeds its header");
    const uint16_t kind = file.u16(at);
    const int64_t begin = at + 4, size = file.u16(at + 2);
    at = begin + size;
    if (kind == kPaddingExtra) {
      const std::string_view padding = file.text(begin, size);
      GALLEY_CHECK_INPUT(padding.find_first_not_of('Z') == std::string_view::npos, "entry '", name, "' has padding with invalid contents");
    }
    if (kind != kZip64Extra) continue;
    int64_t place = begin;
    for (int64_t*& number : wide) {
      if (number == nullptr || *number != kIn64) continue;
      GALLEY_CHECK_INPUT(at - place >= 8, "entry '", name, "' lacks a 64-bit size");
      *number = file.i64(place, "64-bit size");
      number = nullptr;
      place += 8;
    }
  }
  for (const int64_t* number : wide) GALLEY_CHECK_INPUT(number == nullptr || *number != kIn64, "entry '", name, "' lacks a 64-bit size");
}

Header read_header(const Bytes& file, int64_t at) {
  return {file.u16(at),     file.u16(at + 2),  file.u16(at + 4),  file.u16(at + 6),
          file.u16(at + 8), file.u32(at + 10), file.u32(at + 14), file.u32(at + 18)};
}

/// Checks the local header of an entry against the directory, sets the position of the values, and returns the end of the entry including
/// its descriptor.
int64_t place_entry(const Bytes& file, int64_t offset, const Header& central, int64_t limit, ZipEntry& entry) {
  const std::string& name = entry.name;
  GALLEY_CHECK_INPUT(file.holds(offset, kLocalSize) && file.u32(offset) == kLocalMark, "entry '", name, "' has no local header at byte ",
                     offset);
  Header local = read_header(file, offset + 4);
  const int64_t name_bytes = file.u16(offset + 26), extra_bytes = file.u16(offset + 28);
  GALLEY_CHECK_INPUT(file.text(offset + kLocalSize, name_bytes) == name, "entry '", name, "' has another name in its local header");
  const bool described = (central.flags & kDescriptorFlag) != 0;
  read_extra(file, offset + kLocalSize + name_bytes, extra_bytes, name, {&local.bytes, &local.stored_bytes});
  GALLEY_CHECK_INPUT(local.version == central.version && local.flags == central.flags && local.method == central.method &&
                         local.time == central.time && local.date == central.date,
                     "entry '", name, "' has two headers that differ");
  const bool left_out = described && local.crc32 == 0 && local.bytes == 0 && local.stored_bytes == 0;
  GALLEY_CHECK_INPUT(left_out || (local.crc32 == central.crc32 && local.bytes == central.bytes && local.stored_bytes == central.bytes),
                     "entry '", name, "' has two headers that differ in size or checksum");
  entry.begin = offset + kLocalSize + name_bytes + extra_bytes;
  GALLEY_CHECK_INPUT(entry.begin <= limit && central.bytes <= limit - entry.begin, "entry '", name, "' of ", central.bytes,
                     " bytes exceeds the archive");
  entry.end = entry.begin + central.bytes;
  if (!described) return entry.end;
  GALLEY_CHECK_INPUT(file.u32(entry.end) == kDescriptorMark && file.u32(entry.end + 4) == central.crc32, "entry '", name,
                     "' is not followed by its size and checksum");
  const auto sizes_at = [&](int width) {
    return file.holds(entry.end + 8, 2 * width) && file.number(entry.end + 8, width) == static_cast<uint64_t>(central.bytes) &&
           file.number(entry.end + 8 + width, width) == static_cast<uint64_t>(central.bytes);
  };
  if (central.bytes < kIn64 && sizes_at(4)) return entry.end + 16;
  GALLEY_CHECK_INPUT(sizes_at(8), "entry '", name, "' is followed by a size that differs from the directory");
  return entry.end + 24;
}

}  // namespace

bool is_zip(std::span<const std::byte> file) { return file.size() >= 4 && Bytes(file).u32(0) == kLocalMark; }

std::vector<ZipEntry> parse_zip(std::span<const std::byte> bytes) {
  const Bytes file(bytes);
  const Directory directory = find_directory(file);
  // Check the count against the directory's size before memory is allocated for it.
  GALLEY_CHECK_INPUT(directory.entries <= directory.bytes / kCentralSize, "the archive's directory is too short for ", directory.entries,
                     " entries");
  struct Part {
    int64_t begin, end;
    size_t entry;
  };
  std::vector<ZipEntry> entries;
  std::vector<Part> parts;
  std::unordered_set<std::string> names;
  entries.reserve(static_cast<size_t>(directory.entries));
  const int64_t directory_end = directory.begin + directory.bytes;
  int64_t at = directory.begin;
  for (int64_t i = 0; i < directory.entries; ++i) {
    GALLEY_CHECK_INPUT(directory_end - at >= kCentralSize && file.u32(at) == kCentralMark,
                       "the archive's directory is damaged at its entry ", i, " (byte ", at, ")");
    Header header = read_header(file, at + 6);
    const int64_t name_bytes = file.u16(at + 28), extra_bytes = file.u16(at + 30), comment_bytes = file.u16(at + 32);
    GALLEY_CHECK_INPUT(name_bytes + extra_bytes + comment_bytes <= directory_end - at - kCentralSize,
                       "the archive's directory is damaged at its entry ", i, " (byte ", at, ")");
    ZipEntry entry;
    entry.name = std::string(file.text(at + kCentralSize, name_bytes));
    check_name(entry.name);
    GALLEY_CHECK_INPUT(names.insert(entry.name).second, "the archive has the entry '", entry.name, "' twice");
    int64_t offset = file.u32(at + 42);
    read_extra(file, at + kCentralSize + name_bytes, extra_bytes, entry.name, {&header.bytes, &header.stored_bytes, &offset});
    GALLEY_CHECK_INPUT((header.flags & ~(kDescriptorFlag | kUtf8Flag)) == 0, "entry '", entry.name,
                       "' is encrypted or has unsupported flags (", header.flags, ")");
    if (header.method != 0 || header.stored_bytes != header.bytes) {
      throw Error(ErrorCode::kInput,
                  cat("entry '", entry.name, "' is compressed, as in TorchScript programs; torch.save does not compress"))
          .suggest("save only the weights: torch.save(model.state_dict(), FILE)");
    }
    GALLEY_CHECK_INPUT(comment_bytes == 0 && file.u16(at + 34) == 0, "entry '", entry.name, "' has a comment or is on another disk");
    entry.crc32 = header.crc32;
    const int64_t end = place_entry(file, offset, header, directory.begin, entry);
    parts.push_back({offset, end, entries.size()});
    entries.push_back(std::move(entry));
    at += kCentralSize + name_bytes + extra_bytes;
  }
  GALLEY_CHECK_INPUT(at == directory_end, "the archive's directory has ", directory_end - at, " bytes that belong to no entry");

  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
  int64_t covered = 0;
  std::vector<ZipEntry> in_order;
  in_order.reserve(entries.size());
  for (const Part& part : parts) {
    GALLEY_CHECK_INPUT(part.begin >= covered, "entry '", entries[part.entry].name, "' overlaps another");
    GALLEY_CHECK_INPUT(part.begin == covered, "the archive has ", part.begin - covered, " bytes before entry '", entries[part.entry].name,
                       "' that belong to no entry");
    covered = part.end;
    in_order.push_back(std::move(entries[part.entry]));
  }
  GALLEY_CHECK_INPUT(covered == directory.begin, "the archive has ", directory.begin - covered,
                     " bytes before its directory that belong to no entry");
  return in_order;
}

}  // namespace galley
