// voc: images with boxes in the XML files of Pascal VOC. All annotations are read and checked when the source opens.

#include <algorithm>
#include <set>

#include "libcore/base/file.h"
#include "libcore/data/annotations.h"
#include "libcore/data/object_list.h"

namespace galley {
namespace {

constexpr std::array kVocClasses{"aeroplane", "bicycle",     "bird",  "boat",        "bottle", "bus",      "car",
                                 "cat",       "chair",       "cow",   "diningtable", "dog",    "horse",    "motorbike",
                                 "person",    "pottedplant", "sheep", "sofa",        "train",  "tvmonitor"};

/// The stems of the images of a set, or of all annotations.
std::vector<std::string> stems_of(const std::string& root, const std::string& set) {
  std::vector<std::string> stems;
  const std::string annotations = root + "/Annotations";
  if (!is_folder(annotations)) no_such(annotations, "folder");
  if (set.empty()) {
    for (const FolderEntry& entry : list_folder(annotations))
      if (!entry.is_folder && entry.name.ends_with(".xml")) stems.push_back(entry.name.substr(0, entry.name.size() - 4));
    return stems;
  }
  const std::string path = cat(root, "/ImageSets/Main/", set, ".txt");
  if (!file_exists(path)) {
    std::vector<std::string> sets;
    if (is_folder(parent_folder(path))) {
      for (const FolderEntry& entry : list_folder(parent_folder(path)))
        if (entry.name.ends_with(".txt")) sets.push_back(entry.name.substr(0, entry.name.size() - 4));
    }
    if (sets.empty()) throw in_file(path, "no such file").key("source.set").suggest("remove the source's `set` to read all annotations");
    const std::string near = nearest(set, sets);
    std::string known;
    for (size_t i = 0; i < std::min<size_t>(sets.size(), 10); ++i) known += (i > 0 ? ", " : "") + sets[i];
    throw in_file(path, cat("no such file; ImageSets/Main has the sets ", known, sets.size() > 10 ? " ..." : ""))
        .key("source.set")
        .suggest(near.empty() ? "set one of them as the source's set" : cat("did you mean set: ", near, "?"));
  }
  const std::string text = read_file(path);
  std::set<std::string> seen;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    const size_t last = line.find_first_of(" \t\r", first);  // sets of a class have a second column
    stems.push_back(line.substr(first, last == std::string::npos ? last : last - first));
    if (!seen.insert(stems.back()).second)
      throw Error(ErrorCode::kInput, cat("the set lists the image '", stems.back(), "' twice")).at({.file = path, .line = number});
  }
  return stems;
}

/// The image of an annotation: the JPEG of the same name, else the file that the annotation names.
std::string image_of(const std::string& root, const std::string& stem, const VocAnnotation& annotation, const std::string& xml) {
  const std::string path = cat(root, "/JPEGImages/", stem, ".jpg");
  if (file_exists(path)) return path;
  const std::string named = cat(root, "/JPEGImages/", annotation.filename);
  const bool plain = !annotation.filename.empty() && annotation.filename.find('/') == std::string::npos;
  GALLEY_CHECK_FILE(plain && file_exists(named), xml, "no image ", path, plain ? cat(" or ", named) : "");
  return named;
}

}  // namespace

std::unique_ptr<Source> Voc::open(const SourceContext& context) const {
  const std::string root = below_root(context.root, path);
  std::vector<std::string> names{kBackground};
  if (classes.empty()) {
    names.insert(names.end(), kVocClasses.begin(), kVocClasses.end());
  } else {
    for (const std::string& name : classes) {
      GALLEY_CHECK(std::find(names.begin(), names.end(), name) == names.end(), "the class '", name, "' occurs twice in `classes`");
      names.push_back(name);
    }
  }
  ObjectList list("voc", empty, bad_boxes);
  int64_t number = 0;
  for (const std::string& stem : stems_of(root, set)) {
    const std::string xml = cat(root, "/Annotations/", stem, ".xml");
    if (!file_exists(xml) && !set.empty())
      throw in_file(xml, cat("no such file, but the set ", set, " lists the image"))
          .suggest(cat("add the file, or remove '", stem, "' from ImageSets/Main/", set, ".txt"));
    if (!file_exists(xml)) no_such(xml, "file");
    const VocAnnotation annotation = parse_voc(read_file(xml), xml);
    ObjectImage image{
        .file = image_of(root, stem, annotation, xml), .id = number++, .height = annotation.height, .width = annotation.width};
    if (image.height < 1 || image.width < 1) {  // the annotation does not give the size
      const std::string bytes = read_file(image.file);
      const Image pixels = decode_image(std::as_bytes(std::span(bytes)), mode, image.file);
      image.height = pixels.height();
      image.width = pixels.width();
    }
    for (const VocAnnotation::Object& object : annotation.objects) {
      const auto fail = [&](const std::string& message) {
        throw Error(ErrorCode::kInput, message)
            .at({.file = xml, .line = object.line})
            .suggest("set bad_boxes: skip to leave such boxes out");
      };
      const auto found = std::find(names.begin() + 1, names.end(), object.name);
      if (found == names.end()) {
        const std::string near = nearest(object.name, {names.begin() + 1, names.end()});
        throw Error(ErrorCode::kInput, cat("'", object.name, "' is not a class of the source; it has ", names.size() - 1))
            .at({.file = xml, .line = object.line})
            .suggest(near.empty() ? "list all names in the source's `classes`" : cat("did you mean '", near, "'?"));
      }
      const auto& [left, top, right, bottom] = object.box;
      const ObjectBox box{.box = {left, top, right - left, bottom - top},
                          .label = found - names.begin(),
                          .area = (right - left) * (bottom - top),
                          .difficult = object.difficult};
      list.add(image, box, object.name, fail);
    }
    list.finish(std::move(image));
  }
  std::vector<ObjectImage> images = list.take();
  std::string name = cat("voc ", root, set.empty() ? "" : cat(" (", set, ")"), ": ", counted(std::ssize(images), "image"), " of ",
                         names.size() - 1, " classes, ", list.str());
  return annotated_images(std::move(name), std::move(images), std::move(names), learned, mode, difficult);
}

}  // namespace galley
