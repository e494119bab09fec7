package config

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"filippo.io/age"
)

// sealedPrefix begins a value that only processes with the key can read.
const sealedPrefix = "sealed:"

// sealed is what is in a sealed value.
type sealed struct {
	// Jobs are patterns of the names of the jobs that it is for; none is all. Without
	// them whoever makes jobs could have another's value used by a job of their own.
	Jobs  []string `json:"jobs,omitempty"`
	Value string   `json:"value"`
}

// NewKey makes a key for sealed values: what its owner keeps, and what seals for it.
func NewKey() (key, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", fmt.Errorf("make a key: %w", err)
	}
	return id.String(), id.Recipient().String(), nil
}

// Seal gives a value the form in which the settings of a job may hold it: processes with
// the recipient's key alone can read it, for jobs whose names one of the patterns matches,
// all if there is none.
func Seal(recipient string, jobs []string, value string) (string, error) {
	to, err := age.ParseX25519Recipient(strings.TrimSpace(recipient))
	if err != nil {
		return "", fmt.Errorf("read the recipient: %w", err)
	}
	for _, p := range jobs {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return "", fmt.Errorf("%q is no pattern of names: use * and ?, as in shop-*", p)
		}
	}
	if value == "" {
		return "", errors.New("the value is empty")
	}
	raw, err := json.Marshal(sealed{jobs, value})
	if err != nil {
		return "", fmt.Errorf("write the value: %w", err)
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, to)
	if err == nil {
		if _, err = w.Write(raw); err == nil {
			err = w.Close()
		}
	}
	if err != nil {
		return "", fmt.Errorf("seal the value: %w", err)
	}
	return sealedPrefix + base64.RawURLEncoding.EncodeToString(b.Bytes()), nil
}

// ageHeader begins what age has encrypted (age-encryption.org/v1).
const ageHeader = "age-encryption.org/v1\n"

// sealedFor is the reference by which a resolver is asked for a sealed value: with the
// name of the job that wants it.
func sealedFor(job, value string) string {
	return sealedPrefix + job + ":" + strings.TrimPrefix(value, sealedPrefix)
}

// checkSealed says what is wrong with a sealed value, as far as it shows without the key.
func checkSealed(value string) error {
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(value, sealedPrefix))
	if err != nil || !bytes.HasPrefix(raw, []byte(ageHeader)) {
		return errors.New("it is not what `millrace secrets seal` prints")
	}
	return nil
}

// unseal reads a sealed value for a job, with the keys in a file.
func unseal(keyFile, job, text string) (string, error) {
	f, err := os.Open(keyFile) //nolint:gosec // the operator names it
	if err != nil {
		return "", fmt.Errorf("read --secrets-key: %w", err)
	}
	defer func() { _ = f.Close() }()
	keys, err := age.ParseIdentities(f)
	if err != nil {
		return "", errors.New("--secrets-key holds no key, as `millrace secrets keygen` writes it") // the error may show a line of it
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", checkSealed(sealedPrefix + text)
	}
	r, err := age.Decrypt(bytes.NewReader(raw), keys...)
	if err != nil {
		return "", fmt.Errorf("this process has another key: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxFile))
	var s sealed
	if err == nil {
		err = json.Unmarshal(plain, &s)
	}
	if err != nil {
		return "", errors.New("what is in it cannot be read")
	}
	for _, p := range s.Jobs {
		if ok, err := path.Match(p, job); ok && err == nil {
			return s.Value, nil
		}
	}
	if len(s.Jobs) > 0 {
		return "", fmt.Errorf("it was sealed for jobs of other names than %s", job)
	}
	return s.Value, nil
}
