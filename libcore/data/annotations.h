#pragma once
// Parsers of annotation files: Pascal VOC's XML and COCO's JSON. Pure functions over bytes; errors (exit 4) have the file and line.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley {

/// The annotation of one image in Pascal VOC's XML: what the detectors' training reads of it.
struct VocAnnotation {
  struct Object {
    std::string name;
    std::array<double, 4> box{};  ///< xmin, ymin, xmax, ymax as written: from 1, and both ends included.
    bool difficult = false;
    int line = 0;
  };
  std::string filename;
  int64_t width = 0, height = 0;  ///< 0: not given.
  std::vector<Object> objects;
};
/// A document type declaration, and so every entity, is refused.
VocAnnotation parse_voc(std::string_view xml, const std::string& file);

/// The parts of COCO's annotations that are read besides boxes.
struct CocoParts {
  bool masks = false, keypoints = false;
};

/// A COCO file. `offset`: the byte where the record begins, for messages.
struct CocoAnnotations {
  struct Image {
    int64_t id = 0, width = 0, height = 0;
    std::string file_name;
    size_t offset = 0;
  };
  struct Annotation {
    int64_t image_id = 0, category_id = 0;
    std::array<double, 4> box{};  ///< x, y, width, height.
    double area = -1;             ///< Of the object's mask; negative: not given.
    bool crowd = false;
    size_t offset = 0;
    // With CocoParts::masks: polygons x0, y0, x1, y1, ..., or run lengths as numbers or as text.
    std::vector<std::vector<double>> polygons = {};
    std::vector<uint32_t> counts = {};
    std::string text = {};
    int64_t mask_height = 0, mask_width = 0;  ///< Of run lengths; 0: polygons.
    size_t mask_offset = 0;                   ///< 0: no mask.
    // With CocoParts::keypoints: x, y and visibility (0: not labeled, 1: hidden, 2: visible) of each.
    std::vector<float> keypoints = {};
    size_t keypoints_offset = 0;  ///< 0: none.
  };
  struct Category {
    int64_t id = 0;
    std::string name;
    size_t offset = 0;
    std::vector<std::string> keypoints = {};                 ///< Names.
    std::vector<std::pair<int64_t, int64_t>> skeleton = {};  ///< Numbers of key points, from 1, that lines connect.
  };
  std::vector<Image> images;
  std::vector<Annotation> annotations;
  std::vector<Category> categories;
};
CocoAnnotations parse_coco(std::string_view json, const std::string& file, const CocoParts& parts = {});

}  // namespace galley
