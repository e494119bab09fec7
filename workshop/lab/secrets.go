package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const certificateLife = 30 * 24 * time.Hour

// TLSFiles are the certificates of a cluster, as PEM files in its directory.
type TLSFiles struct {
	CA            string // CA is the certificate of the cluster's own authority.
	Server        string // Server is the members' certificate and key.
	Client        string // Client is a client's certificate and key.
	ClientSubject string // ClientSubject is the client certificate's subject, the name of the X.509 user.
}

func (f *TLSFiles) arguments() []string {
	return []string{
		"--tlsMode", "requireTLS", "--tlsCAFile", f.CA, "--tlsCertificateKeyFile", f.Server,
		"--tlsAllowConnectionsWithoutCertificates",
	}
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// writeTLSFiles makes an authority and certificates in dir/tls, or takes those that an earlier start left there.
func writeTLSFiles(dir string) (*TLSFiles, error) {
	dir = filepath.Join(dir, "tls")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the certificate directory: %w", err)
	}
	// A client with the members' organisation and unit counts as a member, and cannot be a user.
	subject := pkix.Name{CommonName: "millrace client", Organization: []string{"clients"}}
	files := &TLSFiles{
		CA: filepath.Join(dir, "ca.pem"), Server: filepath.Join(dir, "server.pem"),
		Client: filepath.Join(dir, "client.pem"), ClientSubject: subject.String(),
	}
	if _, err := os.Stat(files.Client); err == nil { // written last
		return files, nil
	}
	ca, err := newAuthority(files.CA)
	if err != nil {
		return nil, fmt.Errorf("make the certificate authority: %w", err)
	}
	err = errors.Join(ca.issue(files.Server, pkix.Name{CommonName: "localhost", Organization: []string{"members"}}),
		ca.issue(files.Client, subject))
	return files, Wrap(err, "make certificates")
}

// template returns what all certificates have in common, and a new key.
func template(subject pkix.Name) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	serial, err1 := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificateLife),
		BasicConstraintsValid: true,
	}, key, errors.Join(err1, err2)
}

func newAuthority(name string) (*authority, error) {
	cert, key, err := template(pkix.Name{CommonName: "millrace lab"})
	if err != nil {
		return nil, err
	}
	cert.IsCA, cert.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	ca := &authority{cert: cert, key: key}
	return ca, ca.write(name, cert, key, false)
}

// issue makes a certificate for both ends of a connection: members are each other's clients too.
func (a *authority) issue(name string, subject pkix.Name) error {
	cert, key, err := template(subject)
	if err != nil {
		return err
	}
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert.IPAddresses = []net.IP{net.ParseIP(loopback)}
	cert.DNSNames = []string{"localhost"}
	return a.write(name, cert, key, true)
}

// write signs a certificate and writes it, with its key if wanted.
func (a *authority) write(name string, cert *x509.Certificate, key *ecdsa.PrivateKey, withKey bool) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if withKey {
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...)
	}
	return os.WriteFile(name, data, 0o600)
}

// keyFile is the secret by which members trust each other.
type keyFile struct {
	path   string
	secret string
}

// writeKeyFile makes a key file in the directory, or takes the one that an earlier start left there.
func writeKeyFile(dir string) (*keyFile, error) {
	k := &keyFile{path: filepath.Join(dir, "keyfile")}
	data, err := os.ReadFile(k.path)
	if err == nil {
		k.secret = string(data)
		return k, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	secret := make([]byte, 48)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("make the key file: %w", err)
	}
	k.secret = base64.StdEncoding.EncodeToString(secret)
	if err := os.WriteFile(k.path, []byte(k.secret), 0o600); err != nil {
		return nil, fmt.Errorf("write the key file: %w", err)
	}
	return k, nil
}
