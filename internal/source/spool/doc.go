// Package spool keeps an ordered run of records on local disk: a queue between
// a source that forgets and a consumer that is not ready yet. It survives a kill
// at any moment, is bounded in bytes, and tells damaged records from intact ones.
//
// A spool is a directory of segments, each a file named by its number. A segment
// is a run of records: a header of 32 bytes (length of the payload, keys of its
// first and last entry, checksum of header and payload, all little-endian) and
// the payload. What follows the last complete record of the newest segment was torn
// by a crash and is cut off when the spool is opened; a damaged record anywhere
// else is an error.
package spool
