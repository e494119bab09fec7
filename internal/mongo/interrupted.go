package mongo

import (
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/wire"
)

// WriteInterrupted is the error of a write command that was answered, but cut
// short by what passes by itself, such as an election in its middle or a full
// disk: the server tells that as an error of one of the writes, or as one of the
// write concern.
// It is of ClassRetry; nil means that the reply stands as it is.
func WriteInterrupted(res wire.WriteResult) error {
	for _, e := range res.Errors {
		if passesByItself(e.Code) || diskFull(e.Code, e.Message) {
			return driver.CommandError{Code: e.Code, Message: e.Message, Raw: e.Raw}
		}
	}
	if len(res.ConcernError) == 0 {
		return nil
	}
	code, _ := res.ConcernError.Lookup("code").AsInt64OK()
	text, _ := res.ConcernError.Lookup("errmsg").StringValueOK()
	return driver.CommandError{Code: int32(code), Message: "write concern: " + text, Labels: []string{"RetryableWriteError"}}
}
