// Package spool keeps an ordered run of records on local disk. It is a queue between a source
// that forgets and a consumer that is not ready yet. It survives a kill at any moment, is
// bounded in bytes, and distinguishes damaged records from intact ones.
//
// A spool is a directory of segments, each a file named by its number. A segment is a run of
// records. A record is a header of 32 bytes and the payload. The header has the length of the
// payload, keys of its first and last entry, and the checksum of header and payload, all
// little-endian. Bytes after the last complete record of the newest segment were torn by a
// crash. They are cut off when the spool is opened. A damaged record anywhere else is an error.
package spool
