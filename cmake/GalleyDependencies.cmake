# Third-party libraries; the README says why each is here. scripts/setup installs them.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(ARCHIVE REQUIRED IMPORTED_TARGET libarchive)
pkg_check_modules(JPEG REQUIRED IMPORTED_TARGET libjpeg)  # libjpeg-turbo
pkg_check_modules(EXPAT REQUIRED IMPORTED_TARGET expat)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
find_file(GALLEY_FONT DejaVuSans.ttf PATHS /usr/share/fonts/truetype/dejavu /usr/share/fonts/dejavu REQUIRED)  # text on images
find_path(PROTOZERO_INCLUDE_DIR protozero/pbf_reader.hpp REQUIRED)  # headers alone
add_library(protozero::protozero INTERFACE IMPORTED)
target_include_directories(protozero::protozero SYSTEM INTERFACE ${PROTOZERO_INCLUDE_DIR})
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(PCRE2 IMPORTED_TARGET libpcre2-8)  # without it, unknown patterns of tokenizers are errors
pkg_check_modules(SENTENCEPIECE IMPORTED_TARGET sentencepiece)  # without it, its models are errors
pkg_check_modules(NETTLE REQUIRED IMPORTED_TARGET nettle)
if(GALLEY_TOOLS)
  pkg_check_modules(CURL REQUIRED IMPORTED_TARGET libcurl>=7.85)
  pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
endif()
if(NOT TARGET yaml-cpp::yaml-cpp)
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

# oneDNN 3.2 or newer: the distribution's package where it is new enough, else the copy that scripts/setup
# unpacked (third_party/onednn below the build folder's parent, or GALLEY_ONEDNN_ROOT).
set(GALLEY_ONEDNN_ROOT ${CMAKE_SOURCE_DIR}/build/third_party/onednn CACHE PATH "Folder with include/ and lib/ of oneDNN")
if(GALLEY_ONEDNN)
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp HINTS ${GALLEY_ONEDNN_ROOT}/include NO_DEFAULT_PATH)
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(DNNL_LIBRARY dnnl HINTS ${GALLEY_ONEDNN_ROOT}/lib NO_DEFAULT_PATH)
  find_library(DNNL_LIBRARY dnnl)
  if(NOT DNNL_INCLUDE_DIR OR NOT DNNL_LIBRARY)
    message(FATAL_ERROR "oneDNN 3.2 or newer is needed: run scripts/setup, or name a folder with -DGALLEY_ONEDNN_ROOT=DIR")
  endif()
  file(STRINGS ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h DNNL_VERSION_LINES REGEX "define DNNL_VERSION_(MAJOR|MINOR) ")
  string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*" "\\1.\\2" DNNL_VERSION "${DNNL_VERSION_LINES}")
  if(DNNL_VERSION VERSION_LESS 3.2)
    message(FATAL_ERROR "oneDNN ${DNNL_VERSION} in ${DNNL_INCLUDE_DIR} is too old (3.2 or newer is needed): run scripts/setup")
  endif()
  message(STATUS "oneDNN ${DNNL_VERSION}: ${DNNL_LIBRARY}")
  add_library(dnnl::dnnl SHARED IMPORTED)
  set_target_properties(dnnl::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()
