#pragma once
// Writes files for the tests of this room: images, tar archives, IDX files.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "libcore/base/file.h"

namespace galley {

/// A folder of the running test, empty at its start and removed at its end.
class TestFolder {
 public:
  TestFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + "galley_data_" + info->test_suite_name() + "_" + info->name();
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, std::string_view contents) const {
    const std::string path = path_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_file(path, contents);
    return path;
  }

 private:
  std::string path_;
};

/// A 24-bit BMP whose pixels all are (r, g, b).
inline std::string bmp_of(int r, int g, int b, int width = 4, int height = 4) {
  const int row = (width * 3 + 3) / 4 * 4;
  std::string file = "BM";
  const auto put = [&](uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) file += static_cast<char>(value >> (8 * i));
  };
  put(static_cast<uint32_t>(54 + row * height), 4);
  put(0, 4);
  put(54, 4);
  put(40, 4);
  put(static_cast<uint32_t>(width), 4);
  put(static_cast<uint32_t>(height), 4);
  put(1, 2);
  put(24, 2);
  for (int i = 0; i < 6; ++i) put(0, 4);
  for (int y = 0; y < height; ++y) {
    std::string line;
    for (int x = 0; x < width; ++x) line += {static_cast<char>(b), static_cast<char>(g), static_cast<char>(r)};
    line.resize(static_cast<size_t>(row));
    file += line;
  }
  return file;
}

/// One member of a tar archive (ustar), with its header's fields as given.
struct TarEntry {
  std::string name, data;
  char type = '0';
  std::string link = "";
};

/// A tar archive, written by the definition of the format (POSIX ustar) without the library that reads it.
inline std::string tar_of(const std::vector<TarEntry>& entries, int end_blocks = 2) {
  std::string archive;
  for (const TarEntry& entry : entries) {
    std::string header(512, '\0');
    const auto put = [&](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
    const auto octal = [&](size_t at, size_t digits, uint64_t value) {
      for (size_t i = 0; i < digits; ++i) header[at + digits - 1 - i] = static_cast<char>('0' + ((value >> (3 * i)) & 7));
    };
    put(0, entry.name.substr(0, 100));
    octal(100, 7, 0644);
    octal(108, 7, 0);
    octal(116, 7, 0);
    octal(124, 11, entry.data.size());
    octal(136, 11, 0);
    header[156] = entry.type;
    put(157, entry.link);
    put(257, std::string("ustar\0", 6) + "00");
    put(148, "        ");
    uint64_t sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    octal(148, 6, sum);
    header[154] = '\0';
    archive += header + entry.data;
    archive.resize((archive.size() + 511) / 512 * 512);
  }
  return archive + std::string(static_cast<size_t>(512 * end_blocks), '\0');
}

}  // namespace galley
