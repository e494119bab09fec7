package alert

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// The headers of a webhook's request.
const (
	HeaderTimestamp = "Millrace-Timestamp" // seconds since 1970, of this try
	HeaderSignature = "Millrace-Signature" // see Sign
	HeaderDelivery  = "Millrace-Delivery"  // the same each time that a notice comes
)

type webhook struct {
	url    string // may hold a secret
	secret []byte // none: nothing is signed
	client *http.Client
}

func newWebhook(address string, secret []byte) *webhook {
	return &webhook{url: address, secret: secret, client: &http.Client{
		// A redirect leads to a receiver that nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func transport(c *tls.Config) http.RoundTripper {
	return &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: c, ForceAttemptHTTP2: true,
		IdleConnTimeout: time.Minute, TLSHandshakeTimeout: sendTime}
}

// Sign returns the HMAC-SHA256, in hex, of the timestamp's digits, a dot and the body.
func Sign(secret []byte, timestamp string, body []byte) string {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(timestamp + "."))
	m.Write(body)
	return "sha256=" + hex.EncodeToString(m.Sum(nil))
}

// maxReply bounds what is read of a reply, so that its connection is used again.
const maxReply = 64 << 10

func (w *webhook) send(ctx context.Context, n *Notice, raw []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(raw))
	if err != nil {
		return refusal{errors.New("the address cannot be used")} // the error has it
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "millrace")
	req.Header.Set(HeaderDelivery, n.ID+"."+string(n.Event))
	req.Header.Set(HeaderTimestamp, at)
	if len(w.secret) > 0 {
		req.Header.Set(HeaderSignature, Sign(w.secret, at, raw))
	}
	res, err := w.client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the address
		}
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxReply))
	switch code := res.StatusCode; {
	case code < http.StatusMultipleChoices:
		return nil
	case code < http.StatusInternalServerError && code != http.StatusRequestTimeout &&
		code != http.StatusTooManyRequests && code != http.StatusTooEarly:
		return refusal{fmt.Errorf("it replies %d", code)}
	default:
		return fmt.Errorf("it replies %d", code)
	}
}
