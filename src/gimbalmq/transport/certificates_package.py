"""Certificates by the package ``cryptography``; importing this module needs it."""

from __future__ import annotations

import ipaddress
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gimbalmq.transport.certificates import EARLY, Facts, Pair, is_address


class PackageMaker:
    """Makes certificates in this process."""

    def authority(self, name: str, now: datetime, until: datetime) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _begun(name, name, key.public_key(), now, until)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(vouches=True), critical=True)
        )
        return _signed(builder, key, key)

    def issue(self, by: Pair, facts: Facts, now: datetime) -> Pair:
        signer = serialization.load_pem_private_key(by.key.encode(), None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is not on an elliptic curve")
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.read(by.certificate).name
        # A server shows its certificate to other servers, too, as their client.
        uses = [ExtendedKeyUsageOID.SERVER_AUTH] if facts.hosts else []
        vouched = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = (
            _begun(facts.name, issuer, key.public_key(), now, facts.until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(vouches=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([*uses, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(vouched, critical=False)
        )
        if facts.hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in facts.hosts])
            builder = builder.add_extension(names, critical=False)
        return _signed(builder, signer, key)

    def read(self, certificate: str) -> Facts:
        found = x509.load_pem_x509_certificate(certificate.encode())
        names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        hosts: tuple[str, ...] = ()
        authority = False
        for extension in found.extensions:
            value = extension.value
            if isinstance(value, x509.SubjectAlternativeName):
                hosts = tuple(str(name.value) for name in value)
            elif isinstance(value, x509.BasicConstraints):
                authority = value.ca
        return Facts(str(names[0].value) if names else "", hosts, found.not_valid_after_utc, authority)


def _begun(
    name: str, issuer: str, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(_subject(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)


def _usage(*, vouches: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not vouches,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=vouches,
        crl_sign=vouches,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey
) -> Pair:
    made = builder.sign(signer, hashes.SHA256())
    return Pair(
        made.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )
