#pragma once
// Images with what was predicted written on them.

#include <string>
#include <vector>

#include "libcore/data/image.h"

namespace galley::tools {

/// The image (u8, 1 or 3 channels), enlarged where it is small, under a strip with `lines` of text. RGB.
Image draw_labels(const Image& image, const std::vector<std::string>& lines);
enum class DrawFormat { kPng, kJpeg };

/// Write a u8 image as PNG, or as JPEG with quality 95, atomically. Throw (exit 7) where the disk fails.
void write_png(const std::string& path, const Image& image);
void write_jpeg(const std::string& path, const Image& image);

}  // namespace galley::tools
